// Launches with checks.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// Dynamic shared memory that a block of the current device may have.
inline int max_shared_bytes() {
  int device = 0, bytes = 48 * 1024;
  if (cudaGetDevice(&device) == cudaSuccess) {
    (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  return bytes;
}

// Launches kernel(params) with `shared_bytes` of dynamic shared memory; what went wrong, or empty.
template <class Params>
LaunchError launch(const char* name, void (*kernel)(Params), dim3 grid, int threads,
                   int shared_bytes, void* stream, const Params& params) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return {};
  }
  const auto failed = [&](cudaError_t error, const char* what) {
    return std::string(name) + ": " + what + ": " + cudaGetErrorString(error) + " (" +
           std::to_string(shared_bytes) + " bytes of shared memory, " + std::to_string(threads) +
           " threads; grid " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
           std::to_string(grid.z) + ")";
  };
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return failed(error, "shared memory");
    }
  }
  kernel<<<grid, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(params);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? LaunchError{} : failed(error, "launch");
}

}  // namespace kvc
