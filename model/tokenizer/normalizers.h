// tokenizer.json's "normalizer": text to text.
#pragma once

#include <string>

#include "model/tokenizer/component.h"

namespace kvc {

TextNormalizer make_normalizer(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
