// The cases of attention kernels on a GPU. Needs the CUDA toolkit and nothing else. Exit code 0: all passed; 1: not;
// 77: there is no GPU.
//
//   cuda_kernels_test [PART OF A NAME]
#include <cstdio>
#include <exception>
#include <string>

#include "tests/runtime/kernels/cuda/gpu_backend.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

std::string difference(const KernelCase& kernel_case) {
  try {
    GpuBackend backend;
    return kernel_case.run(backend);
  } catch (const std::exception& error) {
    return error.what();
  }
}

int run_all(const std::string& only) {
  int failed = 0, passed = 0;
  for (const CaseSize size : {CaseSize::kSmall, CaseSize::kLarge}) {
    for (const KernelCase& kernel_case : attention_cases(size)) {
      if (kernel_case.name.find(only) == std::string::npos) {
        continue;
      }
      const std::string found = difference(kernel_case);
      found.empty() ? ++passed : ++failed;
      if (!found.empty()) {
        std::printf("FAILED %s: %s\n", kernel_case.name.c_str(), found.c_str());
      }
    }
  }
  std::printf("attention kernels: %d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  return kvc::testing::gpu_test_main(argc, argv, kvc::testing::run_all);
}
