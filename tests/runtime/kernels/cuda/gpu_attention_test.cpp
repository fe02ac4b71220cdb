// The cases of attention kernels on a GPU. Needs the CUDA toolkit and nothing else. Exit code 0: all passed; 1: not;
// 77: there is no GPU.
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/gpu_backend.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> cases = attention_cases(CaseSize::kSmall);
  for (const KernelCase& kernel_case : attention_cases(CaseSize::kLarge)) {
    cases.push_back(kernel_case);
  }
  return cases;
}

std::string run_once(const KernelCase& kernel_case) {
  GpuBackend backend;
  return kernel_case.run(backend);
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  using namespace kvc::testing;
  return gpu_test_main(argc, argv, {"attention kernels", all_cases(), {run_once}});
}
