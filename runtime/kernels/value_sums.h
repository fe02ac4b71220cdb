// Values from sums of codes (coded_attention.h). Does not use torch.
#pragma once

#include <cstdint>

namespace kvc {

// A KV head: value = mean + rows * z, of a token whose codes stand for the coefficients z.
struct ValueDecoder {
  const float* rows;          // [head_dim, num_coefficients]
  const float* mean;          // [head_dim]
  const float* steps;         // [num_coefficients]
  const float* first_levels;  // [num_coefficients], values of code 0
  std::int64_t head_dim, num_coefficients;
};

// sums: [count, num_coefficients + 1], of weights * gain * code, and last of weights * gain, where a head's weights add
// up to 1. Values of `count` query heads: [count, head_dim].
void decode_value_sums(const ValueDecoder& decoder, const float* sums, std::int64_t count,
                       float* values);

}  // namespace kvc
