// The cases of cache kernels on a GPU. Needs the CUDA toolkit and nothing else. Exit code 0: all passed; 1: not;
// 77: there is no GPU.
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/gpu_backend.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

// Twice, of the same inputs: a difference between runs shows a race.
std::string run_twice(const KernelCase& cache_case) {
  std::string difference;
  for (int round = 0; round < 2 && difference.empty(); ++round) {
    GpuBackend backend;
    difference = cache_case.run(backend);
  }
  return difference;
}

// Parts of a step end in an order of the GPU's.
std::string equal_bits(KernelBackend& backend) {
  const std::vector<std::uint16_t> first = budget_outputs(backend);
  for (int round = 1; round < 4; ++round) {
    if (budget_outputs(backend) != first) {
      return "round " + std::to_string(round) + " has other bits than the first";
    }
  }
  return {};
}

std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> cases = code_cases();
  for (const auto& more : {paged_cases(), open_tile_cases(), budget_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  cases.push_back({"budget_equal_bits", equal_bits});
  return cases;
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  using namespace kvc::testing;
  return gpu_test_main(argc, argv, {"cache kernels", all_cases(), {run_twice}});
}
