// tokenizer.json's "decoder": tokens to text.
#pragma once

#include <string>

#include "model/tokenizer/component.h"

namespace kvc {

TokenDecoder make_decoder(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
