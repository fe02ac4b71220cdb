#include "runtime/attention/partial_attention.h"

#include <algorithm>
#include <cmath>

namespace kvc {

at::Tensor join(const std::vector<PartialAttention>& parts) {
  if (parts.size() == 1) {
    return parts.front().output.flatten();
  }
  const std::int64_t num_heads = parts.front().output.size(0);
  const std::int64_t width = parts.front().output.size(1);
  std::vector<float> ones(static_cast<std::size_t>(num_heads), 1.0f);
  std::vector<at::Tensor> memory;
  std::vector<AttentionPartial> partials;
  for (const PartialAttention& part : parts) {
    memory.push_back(part.log_sum.contiguous());
    memory.push_back(part.output.contiguous());
    partials.push_back({.max = memory[memory.size() - 2].mutable_data_ptr<float>(),
                        .sum = ones.data(),
                        .output = memory.back().mutable_data_ptr<float>()});
  }
  const at::Tensor whole = at::empty({num_heads * width}, at::kFloat);
  combine_partials(partials.data(), static_cast<std::int64_t>(partials.size()), num_heads, width,
                   whole.mutable_data_ptr<float>(), nullptr);
  return whole;
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
