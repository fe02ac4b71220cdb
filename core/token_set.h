// Token ids of calibration or evaluation text: tokens.h5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"

namespace kvc {

struct TokenSet {
  std::vector<std::vector<std::int64_t>> sequences;
  std::string tokenizer_hash;              // SHA-256 of tokenizer.json
  std::vector<std::string> source_hashes;  // SHA-256 of each source text, as it was read
  std::string split = "calibration";       // "calibration" or "evaluation"
  Json self = nullptr;  // how self-generated rows were sampled; null if there are none

  std::int64_t num_tokens() const;
  std::string hash() const;  // SHA-256 over everything above
};

// About `wanted` of the sequences, evenly spread, 1 to all of them. Where a model's own text alternates with another
// (TokenSet::self), both are among them.
std::vector<std::size_t> spread_sequences(const TokenSet& tokens, std::size_t wanted);

// Atomic: a new file, or with `force` one in place of another, which stays until then.
void write_token_set(const std::filesystem::path& path, const TokenSet& tokens, bool force = false);
// `vocab_size` bounds the ids; 0 leaves them unchecked.
TokenSet read_token_set(const std::filesystem::path& path, std::int64_t vocab_size);

}  // namespace kvc
