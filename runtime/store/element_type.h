// The kernels' name for a tensor's type.
#pragma once

#include <c10/core/ScalarType.h>

#include "core/error.h"
#include "runtime/kernels/kv_rows.h"

namespace kvc {

// float32, bfloat16 or float16; Error for another.
inline KvElement element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return KvElement::kFloat32;
    case at::kBFloat16:
      return KvElement::kBFloat16;
    case at::kHalf:
      return KvElement::kFloat16;
    default:
      fail("KV cache: no kernel reads rows of {}", c10::toString(type));
  }
}

}  // namespace kvc
