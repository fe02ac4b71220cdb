// x Wᵀ + b for many rows x in bfloat16 products summed in float32, on the CPU. Needs no torch.
//
// Threads first put the rows x into the order in which they are read, then take tasks: kProductColumns outputs of some
// of the rows each. A task puts W's rows in order as it goes, whatever they are held as, and fetches those of the
// thread's next task meanwhile.
#pragma once

#include <cstdint>

#include "model/kernels/int8_matrix.h"

namespace kvc {

inline constexpr std::int64_t kProductColumns = 64;  // outputs of a task
inline constexpr std::int64_t kProductRows = 6;      // of x, a block: in order together

// Numbers are bfloat16, but bias.
struct Bfloat16Product {
  const std::uint16_t* x = nullptr;  // [num_rows, x_stride]
  std::int64_t x_stride = 0;
  std::int64_t num_rows = 0;
  std::int64_t in = 0;
  const std::uint16_t* weight = nullptr;  // [out, in], or null for:
  Int8Matrix int8 = {};                   // weights that are rounded to bfloat16
  std::int64_t out = 0;
  const float* bias = nullptr;  // [out] or null
  std::uint16_t* y = nullptr;   // [num_rows, y_stride]: its first `out` are written
  std::int64_t y_stride = 0;
};

struct Bfloat16Task {
  std::int64_t first_output = 0;  // kProductColumns from here on, or as many as there are
  std::int64_t first_block = 0, last_block = 0;  // of rows: first_block .. last_block - 1
  std::int64_t next_output = 0;  // of the task that comes next; `out`: there is none
};

// Whether this processor has the instructions (AVX-512 BF16), and `in` is even and not zero: what orders rows and runs
// tasks is for such alone.
bool bfloat16_product_is_fast(std::int64_t in);

inline std::int64_t product_blocks(std::int64_t num_rows) {
  return (num_rows + kProductRows - 1) / kProductRows;
}
// 32-bit numbers that x takes in order.
std::int64_t ordered_size(const Bfloat16Product& product);
// Blocks first .. last - 1.
void order_rows(const Bfloat16Product& product, std::int64_t first, std::int64_t last,
                std::uint32_t* ordered);
// 32-bit numbers that a thread's tasks of up to `num_blocks` blocks need beside.
std::int64_t task_memory_size(const Bfloat16Product& product, std::int64_t num_blocks);
void multiply_task(const Bfloat16Product& product, const Bfloat16Task& task,
                   const std::uint32_t* ordered, std::uint32_t* memory);

// All of it on one thread; without the instructions the reference.
void bfloat16_product(const Bfloat16Product& product);
void bfloat16_product_reference(const Bfloat16Product& product);

}  // namespace kvc
