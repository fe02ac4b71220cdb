// A factor of float32 products that is read in the order of its memory. Does not use torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/aligned_vector.h"

namespace kvc {

class PackedRows {
 public:
  PackedRows() = default;
  // Copies rows [count, width].
  PackedRows(const float* rows, std::int64_t count, std::int64_t width);

  // out[t * stride + r] = sum over j of rows[r, j] * x[t, j], for x [num_x, width], in the order of j: a sum does not depend
  // on the other rows, nor on num_x.
  void multiply(const float* x, std::int64_t num_x, float* out, std::int64_t stride) const;

 private:
  std::int64_t count_ = 0, width_ = 0;
  // [panels, width, kPanelRows], the last panel filled with zeros
  AlignedVector<float> panels_;
};

}  // namespace kvc
