// x Wᵀ for few rows x, both of bfloat16 numbers, on the CPU: limited by how fast W is read, which happens once. Needs no
// torch.
#pragma once

#include <cstdint>

namespace kvc {

struct Bfloat16Rows {
  const std::uint16_t* x = nullptr;  // [num_rows, x_stride]
  std::int64_t x_stride = 0;
  std::int64_t num_rows = 0;              // 1 .. kMaxProductRows
  const std::uint16_t* weight = nullptr;  // [out, in], rows one after the other
  std::int64_t in = 0;
};

// Whether this processor has the instructions (AVX-512 BF16). Otherwise weight_product() is faster.
bool bfloat16_rows_are_fast();
// Outputs first .. last - 1 of every row of x, summed in float32. y: [num_rows, last - first]. Neither first nor last
// change what an output is. Without the instructions: the reference.
void bfloat16_rows(const Bfloat16Rows& product, std::int64_t first, std::int64_t last, float* y);
// The specification, in float64.
void bfloat16_rows_reference(const Bfloat16Rows& product, std::int64_t first, std::int64_t last,
                             float* y);

}  // namespace kvc
