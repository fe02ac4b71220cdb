// Passages of the evaluation text that stand in the calibration text, too: what a conversion was fitted to says little of
// other text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/token_set.h"

namespace kvc {

// The shortest passage: some fifteen words. Shorter ones are phrases that texts of one kind share.
inline constexpr std::int64_t kOverlapTokens = 32;

struct TextOverlap {
  struct Passage {
    std::int64_t sequence = 0, first = 0, count = 0;  // of the evaluation text, tokens
  };
  std::int64_t num_tokens = 0;  // of the evaluation text
  std::vector<Passage> passages{};

  double share() const;  // of the tokens that are in passages
};

TextOverlap find_overlap(const TokenSet& evaluation, const TokenSet& calibration);
Json to_json(const TextOverlap& overlap);
// A sentence with the way out where more than a hundredth of the tokens overlaps; else empty.
std::string overlap_warning(const TextOverlap& overlap);

}  // namespace kvc
