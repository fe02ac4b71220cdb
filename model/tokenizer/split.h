// Pre-tokenizers that cut text at a pattern or at characters of one kind.
#pragma once

#include <string>

#include "model/tokenizer/component.h"

namespace kvc {

PreTokenizer make_split(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_digits(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_punctuation(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_delimiter(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_whitespace(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_whitespace_split(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
