// GPU part of compute_place; only in builds with KVC_CUDA.
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace kvc {

// Makes the operators of GPU `index` deterministic; Error naming what is missing if it cannot be used.
void set_up_cuda(int index);
// on_own_stream() for a GPU.
void on_cuda_stream(at::Device device, const std::function<void()>& work);

}  // namespace kvc
