// From how many cached tokens on a conversion takes less memory than the original: its caches are smaller, its
// factors make the weights larger.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/checkpoint.h"
#include "core/json.h"

namespace kvc {

// What a converted checkpoint holds more than its source: the bytes of its kvconvert.* tensors, less those of the
// source's tensors that it does not have. May be negative.
std::int64_t factor_bytes(const Checkpoint& converted, const Checkpoint& source);

struct Payback {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  std::int64_t factor_bytes = 0;     // what the weights grow by; negative where they shrink
  double saved_bytes_per_token = 0;  // of the caches
  std::int64_t tokens =
      0;  // of all sequences together; the caches save more from here on. 0: at once
};

// `original_bytes_per_token` of the model's own cache, of which the conversion's keeps `kept_ratio`.
Payback payback(std::int64_t factor_bytes, double original_bytes_per_token, double kept_ratio);

// "pays from 8000 tokens in flight (factors 96.0 MiB; saves 12.3 KiB a token)"
std::string to_text(const Payback& payback);
Json to_json(const Payback& payback);  // "tokens" is null where it never pays

}  // namespace kvc
