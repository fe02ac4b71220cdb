// tokenizer.json's "pre_tokenizer": text to the pieces within which tokens may merge.
#pragma once

#include <string>

#include "model/tokenizer/component.h"

namespace kvc {

PreTokenizer make_pre_tokenizer(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
