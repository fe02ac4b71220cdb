// Sources of tensors of which one is in memory at a time.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace kvc {

// What the last source of a file gave out: one tensor is held at a time, computed or mapped.
struct Held {
  at::Tensor computed;
  std::span<const std::byte> mapped;

  void release();
};

// A tensor that is computed when it is written.
TensorSource computed_source(std::string name, at::ScalarType dtype,
                             std::vector<std::int64_t> shape, std::shared_ptr<Held> held,
                             std::function<at::Tensor()> compute);

}  // namespace kvc
