// Kernels on a GPU and its memory, for cases of kernels and for benchmarks.
#pragma once

#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/kernel_backend.h"

namespace kvc::testing {

// Throws std::runtime_error naming `what` where `status`, a cudaError_t, is none of success.
void check_cuda(int status, const char* what);
// Why there is no GPU to run on, or empty.
std::string missing_gpu();

class GpuBackend : public KernelBackend {
 public:
  GpuBackend() = default;
  ~GpuBackend() override;
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;

  // Waits, so that an error belongs to the launch that made it.
  void run(const KernelLaunch& launch) override;
  void* allocate(std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from, std::size_t bytes) override;

 private:
  std::vector<void*> blocks_;
};

}  // namespace kvc::testing
