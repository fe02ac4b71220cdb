// The cases of cache kernels on a GPU. Needs the CUDA toolkit and nothing else. Exit code 0: all passed; 1: not;
// 77: there is no GPU.
#include <cstdio>
#include <exception>

#include "tests/runtime/kernels/cuda/gpu_backend.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

// Twice, of the same inputs: a difference between runs shows a race.
std::string run_case(const KernelCase& cache_case) {
  try {
    for (int round = 0; round < 2; ++round) {
      GpuBackend backend;
      const std::string difference = cache_case.run(backend);
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
  std::vector<std::vector<std::uint16_t>> outputs;
  for (int round = 0; round < 4; ++round) {
    GpuBackend backend;
    outputs.push_back(budget_outputs(backend));
    if (outputs.back() != outputs.front()) {
      std::printf("FAILED budget steps: round %d has other bits than the first\n", round);
      return false;
    }
  }
  return true;
}

int run_all(const std::string& only) {
  int failed = 0, passed = 0;
  for (const auto& cases : {code_cases(), budget_cases()}) {
    for (const KernelCase& cache_case : cases) {
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
