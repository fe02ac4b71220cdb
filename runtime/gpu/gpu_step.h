// One decoding step of a batch as launches: built once from a model's weights and a cache on a GPU.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/gpu/step_state.h"
#include "runtime/kernels/cuda/step_program.h"

namespace kvc {

class GpuStep {
 public:
  // Model and cache are on the executor's device, and must outlive the step.
  GpuStep(const GpuModel& model, const GpuCache& cache, const StepSequences& sequences,
          StepExecutor& executor);

  // Builds the program again for the current `cache`, on the same state.
  void rebuild(const GpuModel& model, const GpuCache& cache, const StepSequences& sequences,
               StepExecutor& executor);
  // Computes the next tokens from those in `state`.
  const StepProgram& program() const { return program_; }
  // Only its last launch: tokens from `state.logits`.
  StepProgram sampling() const { return {program_.back()}; }
  const StepState& state() const { return state_; }

 private:
  friend class StepBuilder;
  StepState state_;
  StepMemory memory_;
  std::vector<at::Tensor> constants_;  // what else the program points to
  StepProgram program_;
};

}  // namespace kvc
