// Calibration tokens of a program: a tokens.h5, or text to tokenize.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/calibration_source.h"
#include "model/text.h"

namespace kvc {

struct TokenInput {
  std::filesystem::path tokens{};  // tokens.h5; empty: tokenize `texts`
  CalibrationSources texts{};      // none: the built-in text
  TextOptions text{};
};

// Error if a tokens.h5 is of the evaluation split, was made by another tokenizer than the
// checkpoint's (if it has one) or has ids outside the vocabulary.
TokenSet load_calibration_tokens(const TokenInput& input, const Checkpoint& checkpoint,
                                 std::int64_t vocab_size);

}  // namespace kvc
