// A list of decisions as a tensor.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvc {

// [n] bool, on the CPU.
inline at::Tensor merge_mask(const std::vector<bool>& merged) {
  at::Tensor mask = at::empty({static_cast<std::int64_t>(merged.size())}, at::kBool);
  std::copy(merged.begin(), merged.end(), mask.mutable_data_ptr<bool>());
  return mask;
}

}  // namespace kvc
