#include "tests/runtime/kernels/cuda/gpu_budget_bench.h"

#include <cuda_runtime_api.h>

#include <random>
#include <stdexcept>

#include "runtime/kernels/cuda/budget_step.h"
#include "tests/runtime/kernels/cuda/gpu_timing.h"

namespace kvc::testing {
namespace {

int multiprocessors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "device");
  return count;
}

std::uint16_t* random_rows(GpuBackend& memory, std::size_t count) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> numbers(count);
  for (std::uint16_t& x : numbers) {
    x = narrow_bits(BFloat16{}, normal(generator));
  }
  return memory.upload(numbers);
}

BudgetCache budget_cache(GpuBackend& memory, const BudgetLayout& layout) {
  const auto rows = static_cast<std::size_t>(kBudgetKvHeads * layout.rows());
  const auto slots = static_cast<std::size_t>(kBudgetKvHeads * layout.num_residual);
  return {layout,
          layout.rows(),
          random_rows(memory, rows * kBudgetHeadDim),
          random_rows(memory, rows * kBudgetHeadDim),
          memory.upload(std::vector<float>(rows, 1.0f)),
          memory.upload(std::vector<std::int32_t>(rows, 0)),
          memory.upload(std::vector<float>(slots * kBudgetHeadDim, 0.5f)),
          memory.upload(std::vector<float>(slots * kBudgetHeadDim, 0.5f)),
          memory.upload(std::vector<float>(slots, 1.0f))};
}

}  // namespace

std::vector<double> budget_step_milliseconds(GpuBackend& memory, int sequences, int slots,
                                             const std::vector<int>& tokens) {
  const BudgetLayout layout{0, slots - 1 - slots * 2 / 5, slots * 2 / 5, 1};
  const int parts = budget_parts(multiprocessors(), sequences, kBudgetKvHeads, slots);
  const auto heads = static_cast<std::size_t>(sequences * kBudgetHeads);
  const std::size_t partials = heads * static_cast<std::size_t>(parts);
  const auto floats = [&](std::size_t count) {
    return static_cast<float*>(memory.allocate(4 * count));
  };
  std::vector<BudgetCache> caches;
  for (int i = 0; i < sequences; ++i) {
    caches.push_back(budget_cache(memory, layout));
  }
  BudgetStep params{
      .caches = memory.upload(caches),
      .num_sequences = sequences,
      .num_heads = kBudgetHeads,
      .num_kv_heads = kBudgetKvHeads,
      .head_dim = kBudgetHeadDim,
      .query = random_rows(memory, heads * kBudgetHeadDim),
      .new_key = random_rows(memory, heads * kBudgetHeadDim),
      .new_value = random_rows(memory, heads * kBudgetHeadDim),
      .scale = 0.088f,
      .partials = {floats(partials), floats(partials), floats(partials * kBudgetHeadDim), parts},
      .arrived = memory.upload(
          std::vector<std::uint32_t>(static_cast<std::size_t>(sequences * kBudgetKvHeads))),
      .lowest = static_cast<Chosen*>(memory.allocate(
          sizeof(Chosen) * static_cast<std::size_t>(sequences * kBudgetKvHeads * parts))),
      .products = floats(heads * static_cast<std::size_t>(slots + 1)),
      .products_stride = slots + 1,
      .output = memory.allocate(2 * heads * kBudgetHeadDim)};
  std::vector<double> times;
  for (const int count : tokens) {
    params.num_tokens =
        memory.upload(std::vector<std::int32_t>(static_cast<std::size_t>(sequences), count));
    const auto step = [&] {
      if (const LaunchError error = launch_cuda(params, nullptr); !error.empty()) {
        throw std::runtime_error(error);
      }
    };
    times.push_back(median_times({step}, 5)[0]);
  }
  return times;
}

}  // namespace kvc::testing
