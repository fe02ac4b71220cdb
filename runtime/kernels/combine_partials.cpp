#include <algorithm>
#include <cmath>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

void combine_partials(const AttentionPartial* partials, std::int64_t count, std::int64_t num_heads,
                      std::int64_t head_dim, float* output, float* log_sum) {
  combine_heads(partials, count, 0, num_heads, head_dim, output, log_sum);
}

void combine_heads(const AttentionPartial* partials, std::int64_t count, std::int64_t first,
                   std::int64_t last, std::int64_t head_dim, float* output, float* log_sum) {
  for (std::int64_t head = first; head < last; ++head) {
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
    if (log_sum != nullptr) {
      log_sum[head] = largest + std::log(sum);
    }
  }
}

void add_partial(const AttentionPartial& partial, std::int64_t num_heads, std::int64_t head_dim,
                 const AttentionPartial& to) {
  for (std::int64_t head = 0; head < num_heads; ++head) {
    const float largest = std::max(partial.max[head], to.max[head]);
    const float old_weight = std::exp(to.max[head] - largest);
    const float weight = std::exp(partial.max[head] - largest);
    const float* from = partial.output + head * head_dim;
    float* row = to.output + head * head_dim;
    for (std::int64_t channel = 0; channel < head_dim; ++channel) {
      row[channel] = old_weight * row[channel] + weight * from[channel];
    }
    to.sum[head] = old_weight * to.sum[head] + weight * partial.sum[head];
    to.max[head] = largest;
  }
}

}  // namespace kvc
