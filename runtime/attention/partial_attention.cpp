#include "runtime/attention/partial_attention.h"

#include <algorithm>
#include <cmath>

namespace kvc {

at::Tensor join(const std::vector<PartialAttention>& parts) {
  if (parts.size() == 1) {
    return parts.front().output.flatten();
  }
  std::vector<at::Tensor> outputs, log_sums;
  for (const PartialAttention& part : parts) {
    outputs.push_back(part.output);
    log_sums.push_back(part.log_sum);
  }
  const at::Tensor shares = at::stack(log_sums).softmax(0).unsqueeze(-1);  // [parts, num_heads, 1]
  return (at::stack(outputs) * shares).sum(0).flatten();
}

Partials::Partials(std::size_t count, std::int64_t num_heads, std::int64_t width)
    : num_heads_(num_heads),
      width_(width),
      memory_(count * static_cast<std::size_t>(num_heads * (width + 2))) {
  float* next = memory_.data();
  for (std::size_t i = 0; i < count; ++i) {
    partials_.push_back({next, next + num_heads, next + 2 * num_heads});
    next += num_heads * (width + 2);
  }
}

void Partials::clear() {
  std::fill(memory_.begin(), memory_.end(), 0.0f);
  for (const AttentionPartial& partial : partials_) {
    std::fill_n(partial.max, num_heads_, -INFINITY);
  }
}

PartialAttention Partials::combine() const {
  PartialAttention whole{at::empty({num_heads_, width_}, at::kFloat),
                         at::empty({num_heads_}, at::kFloat)};
  combine_partials(partials_.data(), static_cast<std::int64_t>(partials_.size()), num_heads_,
                   width_, whole.output.mutable_data_ptr<float>(),
                   whole.log_sum.mutable_data_ptr<float>());
  return whole;
}

}  // namespace kvc
