// tokenizer.json's "model": a BPE, read and checked.
#pragma once

#include <string>

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/component.h"

namespace kvc {

BpeModel read_bpe_model(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
