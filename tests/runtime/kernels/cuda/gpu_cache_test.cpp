// The cases of cache kernels on a GPU. Needs the CUDA toolkit and nothing else. Exit code 0: all passed; 1: not;
// 77: there is no GPU.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>

#include "tests/runtime/kernels/cuda/cache_kernels.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/gpu_memory.h"

namespace kvc::testing {
namespace {

// Waits, so that an error belongs to the launch that made it.
void require(const LaunchError& error) {
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
  check_cuda(cudaDeviceSynchronize(), "kernel");
}

class GpuCacheKernels : public CacheKernels {
 public:
  void run(const QuantiseRows& params) override { require(quantise_rows_cuda(params, nullptr)); }
  void run(const DequantiseRows& params) override {
    require(dequantise_rows_cuda(params, nullptr));
  }
  void encode(const CodeTilesParams& params) override {
    require(encode_tiles_cuda(params, nullptr));
  }
  void decode(const CodeTilesParams& params) override {
    require(decode_tiles_cuda(params, nullptr));
  }
  void run(const ProjectRows& params) override { require(project_rows_cuda(params, nullptr)); }
  void run(const NearestRows& params) override { require(nearest_rows_cuda(params, nullptr)); }
  void run(const LostRows& params) override { require(lost_rows_cuda(params, nullptr)); }
  void run(const RowCosines& params) override { require(row_cosines_cuda(params, nullptr)); }
  void run(const GatherRows& params) override { require(gather_rows_cuda(params, nullptr)); }
  void run(const BudgetStep& params) override { require(budget_step_cuda(params, nullptr)); }
};

// Twice, of the same inputs: a difference between runs shows a race.
std::string run_case(const CacheCase& cache_case) {
  GpuCacheKernels kernels;
  try {
    for (int round = 0; round < 2; ++round) {
      GpuMemory memory;
      const std::string difference = cache_case.run(memory, kernels);
      if (!difference.empty()) {
        return difference;
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// Parts of a step end in an order of the GPU's.
bool has_equal_bits() {
  GpuCacheKernels kernels;
  std::vector<std::vector<std::uint16_t>> outputs;
  for (int round = 0; round < 4; ++round) {
    GpuMemory memory;
    outputs.push_back(budget_outputs(memory, kernels));
    if (outputs.back() != outputs.front()) {
      std::printf("FAILED budget steps: round %d has other bits than the first\n", round);
      return false;
    }
  }
  return true;
}

int run_all(const std::string& only) {
  int failed = 0, passed = 0;
  for (const auto& cases : {code_cases(), product_cases(), budget_cases()}) {
    for (const CacheCase& cache_case : cases) {
      if (cache_case.name.find(only) == std::string::npos) {
        continue;
      }
      const std::string difference = run_case(cache_case);
      difference.empty() ? ++passed : ++failed;
      if (!difference.empty()) {
        std::printf("FAILED %s: %s\n", cache_case.name.c_str(), difference.c_str());
      }
    }
  }
  failed += only.empty() && !has_equal_bits() ? 1 : 0;
  std::printf("cache kernels: %d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  return kvc::testing::gpu_test_main(argc, argv, kvc::testing::run_all);
}
