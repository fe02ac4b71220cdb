#include "model/compute_place.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <optional>

#include "core/error.h"

namespace kvc {

namespace {

constexpr int kLeastMajor = 8;  // compute capability: matrix instructions and attention in bfloat16

}  // namespace

void set_up_cuda(int index) {
  // Read when cuBLAS makes its first handle: workspaces of a fixed size give fixed orders of summation. kCublasWorkspaceBytes.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  KVC_CHECK(status == cudaSuccess && count > 0,
            "--device cuda: no usable GPU ({}); use --device cpu",
            status == cudaSuccess ? "none found" : cudaGetErrorString(status));
  KVC_CHECK(index < count, "--device cuda:{}: this machine has {} GPU(s), numbered from 0", index,
            count);
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  KVC_CHECK(
      major >= kLeastMajor,
      "--device cuda:{}: a GPU of compute capability {}.{}, but the kernels require {}.0 (A100) "
      "or newer; use --device cpu",
      index, major, minor, kLeastMajor);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
  context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
}

void wait_for_cuda_stream(at::Device device) {
  c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
}

std::int64_t free_cuda_bytes(at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::CUDACachingAllocator::emptyCache();  // what it holds without a tensor in it
  std::size_t free = 0, total = 0;
  const cudaError_t status = cudaMemGetInfo(&free, &total);
  KVC_CHECK(status == cudaSuccess, "--device cuda: memory: {}", cudaGetErrorString(status));
  return static_cast<std::int64_t>(free);
}

void on_cuda_stream(at::Device device, const std::function<void()>& work) {
  thread_local std::optional<c10::cuda::CUDAStream> own;
  if (!own || own->device() != device) {
    own = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  }
  const c10::cuda::CUDAStreamGuard guard(*own);
  work();
  own->synchronize();
}

}  // namespace kvc
