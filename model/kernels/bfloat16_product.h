// x Wᵀ for many rows x in bfloat16 products summed in float32, on the CPU: for weights that are made on the way,
// which oneDNN would want whole, and order anew. Needs no torch.
#pragma once

#include <cstdint>

namespace kvc {

inline constexpr std::int64_t kProductColumns = 64;

// Numbers are bfloat16, but bias.
struct Bfloat16Product {
  const std::uint16_t* x = nullptr;  // [num_rows, x_stride]
  std::int64_t x_stride = 0;
  std::int64_t num_rows = 0;
  std::int64_t in = 0;                    // even
  const std::uint16_t* weight = nullptr;  // [columns, in]
  std::int64_t columns = 0;               // 1 .. kProductColumns
  const float* bias = nullptr;            // [columns] or null
  std::uint16_t* y = nullptr;             // [num_rows, y_stride]: its first `columns` are written
  std::int64_t y_stride = 0;
};

// Whether this processor has the instructions (AVX-512 BF16), and `in` is even.
bool bfloat16_product_is_fast(std::int64_t in);
// Without the instructions: the reference.
void bfloat16_product(const Bfloat16Product& product);
void bfloat16_product_reference(const Bfloat16Product& product);

}  // namespace kvc
