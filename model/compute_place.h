// Device and dtype of a pass over tensors.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>

namespace kvc {

struct ComputePlace {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of activations; sums over tokens are float64 everywhere

  at::Tensor take(const at::Tensor& tensor) const { return tensor.to(device, dtype); }
};

// Is a --device value cuda or cuda:N? UsageError unless it is one of these, auto or cpu.
bool names_gpu(const std::string& name);
// The device of a --device value: auto and cpu, or cuda and cuda:N. UsageError for another word; Error,
// with the way out, if this build or machine has no such GPU. A GPU is set up so that equal runs give
// equal bits: deterministic operators, and no sums of products in 16 bits.
at::Device compute_device(const std::string& name);
// For passes over calibration text: float32 on the CPU, bfloat16 on a GPU.
ComputePlace statistics_place(at::Device device);
ComputePlace statistics_place(const std::string& device);  // a --device value
// "float32" or "bfloat16", as provenance names it.
std::string compute_dtype_name(const ComputePlace& place);

// Runs `work` and waits for what it queued. On a GPU every thread has its own stream, so threads
// overlap; tensors made here may go to any thread afterwards. No gradients are recorded.
void on_own_stream(at::Device device, const std::function<void()>& work);

#ifdef KVC_CUDA
// The GPU's part of the above.
// What cuBLAS allocates for every stream when it first multiplies there.
inline constexpr std::int64_t kCublasWorkspaceBytes = std::int64_t{8} * 4096 * 1024;
// Makes the operators of GPU `index` deterministic; Error naming what is missing if it cannot be used.
void set_up_cuda(int index);
// on_own_stream() for a GPU.
void on_cuda_stream(at::Device device, const std::function<void()>& work);
#endif

}  // namespace kvc
