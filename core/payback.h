// The number of cached tokens from which a conversion takes less memory than the original: its caches are
// smaller, but its factors enlarge the weights.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/checkpoint.h"
#include "core/json.h"

namespace kvc {

// Bytes that a converted checkpoint has more than its source: its kvconvert.* tensors, less the source's tensors
// that it lacks. May be negative.
std::int64_t factor_bytes(const Checkpoint& converted, const Checkpoint& source);

struct Payback {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  std::int64_t factor_bytes = 0;     // growth of the weights; negative if they shrink
  double saved_bytes_per_token = 0;  // of the caches
  std::int64_t tokens = 0;  // tokens of all sequences together from which it pays; 0: at once
};

// `original_bytes_per_token` is that of the model's own cache; the conversion keeps `kept_ratio` of
// it.
Payback payback(std::int64_t factor_bytes, double original_bytes_per_token, double kept_ratio);

// "pays from 8000 tokens in flight (factors 96.0 MiB; saves 12.3 KiB a token)"
std::string to_text(const Payback& payback);
Json to_json(const Payback& payback);  // "tokens" is null where it never pays

}  // namespace kvc
