#include "model/row_products.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "model/fused_ops.h"
#include "model/kernels/bfloat16_product.h"
#include "model/kernels/cpu_features.h"
#include "model/parallel.h"

namespace kvc {
namespace {

constexpr std::int64_t kOrderedBytes = std::int64_t{8} << 20;  // of x: stay in a third-level cache
constexpr std::int64_t kMaxRows = 1024;      // so many that their sums stay in a second-level cache
constexpr std::int64_t kTasksPerThread = 4;  // at least, so that none waits long for the last
constexpr std::int64_t kMinBlocks = 8;       // of a task: for less, ordering weights shows
constexpr std::int64_t kBlocksTogether = 4;  // that a thread orders at a time
constexpr std::int64_t kProductsPerThread = std::int64_t{1} << 20;  // for less, threads cost more

// Rows of x that are multiplied before the next ones are, and the tasks they make.
class Part {
 public:
  void assign(const Bfloat16Product& all, std::int64_t first, std::int64_t count,
              std::int64_t threads) {
    product_ = all;
    product_.x += first * all.x_stride;
    product_.y += first * all.y_stride;
    product_.num_rows = count;
    blocks_ = product_blocks(count);
    panels_ = (all.out + kProductColumns - 1) / kProductColumns;
    pieces_ = std::clamp<std::int64_t>((kTasksPerThread * threads + panels_ - 1) / panels_, 1,
                                       std::max<std::int64_t>(1, blocks_ / kMinBlocks));
  }

  void order(std::uint32_t* ordered) {
    for (std::int64_t first = next_block_.fetch_add(kBlocksTogether); first < blocks_;
         first = next_block_.fetch_add(kBlocksTogether)) {
      order_rows(product_, first, std::min(first + kBlocksTogether, blocks_), ordered);
    }
  }

  void multiply(std::int64_t threads, const std::uint32_t* ordered, std::uint32_t* memory) {
    for (std::int64_t task = next_task_++; task < panels_ * pieces_; task = next_task_++) {
      const std::int64_t piece = task % pieces_;
      const std::int64_t next = (task + threads) / pieces_;  // as long as all are equally fast
      multiply_task(product_,
                    {.first_output = task / pieces_ * kProductColumns,
                     .first_block = piece * blocks_ / pieces_,
                     .last_block = (piece + 1) * blocks_ / pieces_,
                     .next_output = std::min(next * kProductColumns, product_.out)},
                    ordered, memory);
    }
  }

 private:
  Bfloat16Product product_;
  std::int64_t blocks_ = 0, panels_ = 0, pieces_ = 1;
  std::atomic<std::int64_t> next_block_ = 0, next_task_ = 0;
};

std::int64_t rows_together(const Bfloat16Product& product) {
  const std::int64_t fitting =
      kOrderedBytes / (product.in * static_cast<std::int64_t>(sizeof(std::uint16_t)));
  const std::int64_t most = std::clamp(fitting, kProductRows * kMinBlocks, kMaxRows);
  const std::int64_t parts = (product.num_rows + most - 1) / most;
  return product_blocks((product.num_rows + parts - 1) / parts) * kProductRows;
}

void run(const Bfloat16Product& product) {
  const std::int64_t rows = rows_together(product);
  const std::int64_t work = product.num_rows * product.in * product.out / kProductsPerThread;
  const std::int64_t threads = std::clamp<std::int64_t>(work, 1, at::get_num_threads());
  std::vector<Part> parts(static_cast<std::size_t>((product.num_rows + rows - 1) / rows));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * rows;
    parts[i].assign(product, first, std::min(rows, product.num_rows - first), threads);
  }
  Bfloat16Product first_part = product;
  first_part.num_rows = std::min(rows, product.num_rows);
  const std::int64_t x_size = (ordered_size(first_part) + 15) / 16 * 16;
  const std::int64_t task_size = task_memory_size(first_part, product_blocks(rows));
  at::Tensor memory = at::empty({x_size + threads * task_size}, at::kInt);
  auto* ordered = static_cast<std::uint32_t*>(memory.mutable_data_ptr());
  std::vector<Phase> phases;
  for (Part& part : parts) {
    phases.emplace_back([&](std::int64_t, std::int64_t) { part.order(ordered); });
    phases.emplace_back([&](std::int64_t thread, std::int64_t of) {
      part.multiply(of, ordered, ordered + x_size + thread * task_size);
    });
  }
  parallel_phases(threads, phases);
}

at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias, Bfloat16Product product) {
  at::Tensor y = at::empty({x.size(0), product.out}, x.options());
  const at::Tensor wide_bias = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
  product.x = static_cast<const std::uint16_t*>(x.const_data_ptr());
  product.x_stride = x.stride(0);
  product.num_rows = x.size(0);
  product.in = x.size(1);
  product.bias = bias.defined() ? wide_bias.const_data_ptr<float>() : nullptr;
  product.y = static_cast<std::uint16_t*>(y.mutable_data_ptr());
  product.y_stride = product.out;
  if (y.numel() > 0) {
    run(product);
  }
  return y;
}

bool is_bfloat16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

}  // namespace

bool can_multiply_bfloat16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return can_multiply_bfloat16_int8(x) && !has_bfloat16_amx() && is_bfloat16(weight) &&
         weight.is_cpu() && weight.dim() == 2 && weight.is_contiguous() &&
         !wants_gradient(weight) &&
         (!bias.defined() || (is_bfloat16(bias) && bias.is_cpu() && !wants_gradient(bias)));
}

at::Tensor multiply_bfloat16(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias) {
  return multiply(x, bias,
                  {.weight = static_cast<const std::uint16_t*>(weight.const_data_ptr()),
                   .out = weight.size(0)});
}

bool can_multiply_bfloat16_int8(const at::Tensor& x) {
  return is_bfloat16(x) && x.is_cpu() && x.dim() == 2 && x.size(1) > 0 && x.stride(1) == 1 &&
         !wants_gradient(x) && bfloat16_product_is_fast(x.size(1));
}

at::Tensor multiply_bfloat16_int8(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scales, const at::Tensor& bias) {
  const Int8Matrix matrix{codes.const_data_ptr<std::int8_t>(),
                          static_cast<const std::uint16_t*>(scales.const_data_ptr()), codes.size(0),
                          x.size(1)};
  return multiply(x, bias, {.int8 = matrix, .out = matrix.out});
}

}  // namespace kvc
