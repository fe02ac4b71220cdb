// Calibration tokens of a program: a tokens.h5, or text to tokenize.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <string>
#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/text.h"

namespace kvc {

// Sources of calibration text, as --calibration names them.
struct CalibrationSources {
  bool self = false;     // "self": the model writes it (runtime/program/self_text.h)
  bool builtin = false;  // "builtin": the text inside the program
  std::vector<std::filesystem::path> files{};  // .txt, .jsonl or tokens.h5
};

// Every word is "self", "builtin" or a file ("./self" is a file). UsageError for any other word: no such file,
// and no suffix of a text file.
CalibrationSources parse_calibration_sources(const std::vector<std::string>& words);

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
