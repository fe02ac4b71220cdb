// The cases of attention kernels on a GPU. Needs the CUDA toolkit and nothing else. Exit code 0: all passed; 1: not;
// 77: there is no GPU.
//
//   cuda_kernels_test [PART OF A NAME]
#include <cuda_runtime_api.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "runtime/kernels/cuda/attention_one_pass.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/gpu_memory.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

class GpuBackend : public KernelBackend {
 public:
  void* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void write(void* to, const void* from, std::size_t bytes) override {
    memory_.write(to, from, bytes);
  }
  void read(void* to, const void* from, std::size_t bytes) override {
    memory_.read(to, from, bytes);
  }

  void run(const DenseAttention& params) override {
    require(params.num_sources == 1 ? dense_attention_cuda(params, nullptr)
                                    : fused_attention_cuda(params, nullptr));
  }
  void run(const CombinePartials& params) override {
    require(combine_partials_cuda(params, nullptr));
  }
  void run(const RankAttention& params) override { require(rank_attention_cuda(params, nullptr)); }
  void run(const ProjectValues& params) override { require(project_values_cuda(params, nullptr)); }
  void run(const FuseRows& params) override { require(fuse_rows_cuda(params, nullptr)); }

 private:
  // Waits, so that an error belongs to the launch that made it.
  static void require(const LaunchError& error) {
    if (!error.empty()) {
      throw std::runtime_error(error);
    }
    check_cuda(cudaDeviceSynchronize(), "kernel");
  }

  GpuMemory memory_;
};

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
