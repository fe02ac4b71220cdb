// Launches on a GPU; only in builds with KVC_CUDA.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "runtime/gpu/step_executor.h"

namespace kvc {

// On a stream of torch's pool, which is the thread's current one from now on. Programs are captured as CUDA graphs.
// The device is set up (model/compute_place.h).
std::unique_ptr<StepExecutor> cuda_executor(at::Device device);

}  // namespace kvc
