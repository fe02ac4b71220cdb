#include "tests/runtime/kernels/cuda/gpu_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>

namespace kvc::testing {

void check_cuda(int status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " +
                             cudaGetErrorString(static_cast<cudaError_t>(status)));
  }
}

std::string missing_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    return cudaGetErrorString(status);
  }
  return count == 0 ? "none found" : "";
}

GpuBackend::~GpuBackend() {
  for (void* block : blocks_) {
    (void)cudaFree(block);
  }
}

void GpuBackend::run(const KernelLaunch& launch) {
  if (const LaunchError error = launch_cuda(launch, nullptr); !error.empty()) {
    throw std::runtime_error(error);
  }
  check_cuda(cudaDeviceSynchronize(), "kernel");
}

void* GpuBackend::allocate(std::size_t bytes) {
  void* block = nullptr;
  check_cuda(cudaMalloc(&block, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  blocks_.push_back(block);
  return block;
}

void GpuBackend::write(void* to, const void* from, std::size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the GPU");
}

void GpuBackend::read(void* to, const void* from, std::size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the GPU");
}

}  // namespace kvc::testing
