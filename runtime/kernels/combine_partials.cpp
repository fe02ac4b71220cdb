#include <algorithm>
#include <cmath>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

void combine_partials(const AttentionPartial* partials, std::int64_t count, std::int64_t num_heads,
                      std::int64_t head_dim, float* output) {
  for (std::int64_t head = 0; head < num_heads; ++head) {
    float largest = -INFINITY, sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, partials[i].max[head]);
    }
    float* row = output + head * head_dim;
    std::fill(row, row + head_dim, 0.0f);
    for (std::int64_t i = 0; i < count; ++i) {
      const float weight = std::exp(partials[i].max[head] - largest);
      sum += weight * partials[i].sum[head];
      for (std::int64_t channel = 0; channel < head_dim; ++channel) {
        row[channel] += weight * partials[i].output[head * head_dim + channel];
      }
    }
    for (std::int64_t channel = 0; channel < head_dim; ++channel) {
      row[channel] /= sum;
    }
  }
}

}  // namespace kvc
