// Memory for weights.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// As at::empty, but tensors lie one after the other in huge pages where the system has them: reading them once per token
// is what generation spends its time on, and is a fifth faster so.
at::Tensor empty_weight(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace kvc
