// Metaspace: spaces become a visible character, at which words are cut, and back.
#pragma once

#include <string>

#include "model/tokenizer/component.h"

namespace kvc {

PreTokenizer make_metaspace_pre_tokenizer(const TokenizerJson& json, const std::string& subject);
TokenDecoder make_metaspace_decoder(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
