// Launches on a GPU, with checks.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
    run_kernel(typename Kernel::Params params) {
  DeviceThread thread;
  Kernel::run(params, thread);
}

struct CudaLauncher {
  void* stream;

  int threads(int most) const { return most; }
  int shared_bytes() const {
    int device = 0, bytes = 48 * 1024;
    if (cudaGetDevice(&device) == cudaSuccess) {
      (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    return bytes;
  }

  template <class Kernel>
  LaunchError run(const typename Kernel::Params& params, const LaunchGrid& grid, int threads,
                  int shared_bytes = 0) const {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
      return {};
    }
    const auto failed = [&](cudaError_t error, const char* what) {
      return std::string(Kernel::kName) + ": " + what + ": " + cudaGetErrorString(error) + " (" +
             std::to_string(shared_bytes) + " bytes of shared memory, " + std::to_string(threads) +
             " threads; grid " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
             std::to_string(grid.z) + ")";
    };
    if (shared_bytes > 48 * 1024) {
      const cudaError_t error = cudaFuncSetAttribute(
          run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return failed(error, "shared memory");
      }
    }
    const dim3 blocks(grid.x, grid.y, grid.z);
    const auto queue = static_cast<cudaStream_t>(stream);
    if (grid.at_once) {
      auto copied = params;
      void* arguments[] = {&copied};
      (void)cudaLaunchCooperativeKernel(run_kernel<Kernel>, blocks, dim3(threads), arguments,
                                        static_cast<std::size_t>(shared_bytes), queue);
    } else {
      run_kernel<Kernel><<<blocks, threads, shared_bytes, queue>>>(params);
    }
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? LaunchError{} : failed(error, "launch");
  }
};

template <class Params>
LaunchError launch_cuda(const Params& params, void* stream) {
  return launch_kernels(params, CudaLauncher{stream});
}

}  // namespace kvc
