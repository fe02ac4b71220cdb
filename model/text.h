// Text files as token sets: .txt, .jsonl (a "text" field per line) or tokens.h5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/token_set.h"
#include "model/tokenizer/tokenizer.h"

namespace kvc {

struct TextOptions {
  std::int64_t num_sequences = 64;  // at most; 0: all
  std::int64_t seq_len = 512;       // tokens per sequence, special tokens included
  bool builtin = false;             // the built-in text too, after the files
  std::uint64_t seed = 0;  // seeds the offset of the evenly spread choice if there are more
};

// Reads `files` (of one or several kinds), tokenizes each as one text (records of a .jsonl joined by empty lines), cuts
// it into rows of seq_len (each with the post-processor's tokens; an incomplete last row is kept only if it is the
// file's first) and keeps num_sequences of all rows. A text that was read already is left out, with a warning. A tokens.h5
// gives all its rows, after the others; its tokenizer hash must match. The built-in text is used if `files` is empty, or in addition with options.builtin. Error naming the
// file if it gives no token.
TokenSet load_token_set(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                        std::int64_t vocab_size, const TextOptions& options,
                        const std::string& split);

// The public-domain texts inside the program: one for calibration, one for evaluation.
std::string_view builtin_calibration_text();
std::string_view builtin_evaluation_text();

// The text inside a .txt or .jsonl file, checked.
struct TextSource {
  std::string name;  // for messages
  std::string text;  // UTF-8, not only white space
  std::string hash;  // SHA-256 of the file's bytes
};

// A .txt without its byte order mark; the "text" fields of a .jsonl, separated by empty lines.
// Throws Error naming the file, and the line of a bad record.
TextSource read_text_source(const std::filesystem::path& path);

}  // namespace kvc
