// Text files as token sets: .txt, .jsonl (a "text" field per line) or tokens.h5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/token_set.h"
#include "model/tokenizer/tokenizer.h"

namespace kvc {

struct TextOptions {
  std::int64_t num_sequences = 64;  // at most; 0 means as many as the text gives
  std::int64_t seq_len = 512;       // tokens per sequence, special tokens included
  std::uint64_t seed = 0;           // picks sequences evenly spread with a seeded offset when there are more
};

// Reads `files` (all of one or several kinds), tokenizes, cuts into rows of seq_len (each starting with
// what the post-processor adds) and keeps num_sequences of them. Error when no token results, naming the
// file. A tokens.h5 keeps its rows; its tokenizer hash must match. The built-in text is used when
// `files` is empty.
TokenSet load_token_set(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                        std::int64_t vocab_size, const TextOptions& options, const std::string& split);

// The public-domain texts that travel in the program: one for calibration, another for evaluation.
std::string_view builtin_calibration_text();
std::string_view builtin_evaluation_text();

}  // namespace kvc
