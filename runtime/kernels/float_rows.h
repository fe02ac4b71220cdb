// Products of float32 rows. Does not use torch.
#pragma once

#include <cstdint>

namespace kvc {

struct FloatRows {
  const float* numbers = nullptr;
  std::int64_t count = 0, width = 0;
};

// out[t * stride + r] = sum over j of rows[r, j] * x[t, j], for x [count, rows.width]. A sum does not depend on the
// other rows.
void multiply_rows_reference(const FloatRows& rows, const float* x, std::int64_t count, float* out,
                             std::int64_t stride);
void multiply_rows(const FloatRows& rows, const float* x, std::int64_t count, float* out,
                   std::int64_t stride);

}  // namespace kvc
