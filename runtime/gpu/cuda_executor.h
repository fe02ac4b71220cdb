// Launches on a GPU; only in builds with KVC_CUDA.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "runtime/gpu/step_executor.h"

namespace kvc {

// Uses a stream of torch's pool and makes it the thread's current one. Programs are captured as CUDA graphs. Sets
// up the device (model/compute_place.h). Error where another thread calls, or the thread's stream has become another.
std::unique_ptr<StepExecutor> cuda_executor(at::Device device);

}  // namespace kvc
