// What became of one prompt under reuse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvc {

struct ReuseReport {
  std::string donor;      // the entry's name; empty: the prompt was read as a whole,
  std::string whole;      // because of this
  double similarity = 0;  // to the most similar donor that was matched
  double hot_ratio = 0;   // r_dynamic
  double seconds = 0;     // to find, check and match donors
  std::int64_t donor_tokens = 0;
  std::int64_t donor_bytes = 0;            // of its keys, values and ids, outside of the cache
  std::vector<std::int64_t> recomputed{};  // tokens per layer; the first layer's are all
  std::vector<std::int64_t> retained{};    // tokens per layer, when the prompt was read
};

}  // namespace kvc
