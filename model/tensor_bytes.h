// Bytes of a model's tensors in memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace kvc {

// 0 if undefined.
inline std::int64_t tensor_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

}  // namespace kvc
