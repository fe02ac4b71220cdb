// The kernels' names for dtypes of tensors and caches.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "core/error.h"
#include "core/kv_plan.h"
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

// The integers of a cache of this dtype; none: not coded.
inline std::optional<KvElement> codes_of(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kInt8:
      return KvElement::kInt8;
    case KvDtype::kInt4:
      return KvElement::kInt4;
    case KvDtype::kInt2:
      return KvElement::kInt2;
    default:
      return std::nullopt;
  }
}
inline KvDtype dtype_of(KvElement codes) {
  return codes == KvElement::kInt8   ? KvDtype::kInt8
         : codes == KvElement::kInt4 ? KvDtype::kInt4
                                     : KvDtype::kInt2;
}

}  // namespace kvc
