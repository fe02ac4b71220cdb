// Device and dtype of a pass over tensors.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace kvc {

struct ComputePlace {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of activations; sums over tokens are float64 everywhere

  at::Tensor take(const at::Tensor& tensor) const { return tensor.to(device, dtype); }
};

// True if a --device value is cuda or cuda:N. UsageError unless it is one of these, auto or cpu.
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

// Waits for what this thread queued on its current stream of a GPU, so that other threads may read it.
void wait_for_stream(at::Device device);

// A tensor for what a pass over tokens leaves to the next one: on the place's GPU, where it takes at most a quarter of what
// is free there; else in memory or in a file, as make_scratch_tensor() has it. Uninitialised.
at::Tensor make_pass_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                            const ComputePlace& place, const std::filesystem::path& directory,
                            std::int64_t memory_bytes = std::int64_t{1} << 30);

#ifdef KVC_CUDA
// The GPU's part of the above.
// What cuBLAS allocates for every stream when it first multiplies there.
inline constexpr std::int64_t kCublasWorkspaceBytes = std::int64_t{8} * 4096 * 1024;
// Makes the operators of GPU `index` deterministic; Error naming what is missing if it cannot be used.
void set_up_cuda(int index);
// wait_for_stream() for a GPU.
void wait_for_cuda_stream(at::Device device);
// That can be allocated on a GPU.
std::int64_t free_cuda_bytes(at::Device device);
// on_own_stream() for a GPU.
void on_cuda_stream(at::Device device, const std::function<void()>& work);
#endif

}  // namespace kvc
