// Runs the launches of a decoding step: on a GPU (cuda_executor.h), or in tests in the CPU
// emulator.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "runtime/kernels/cuda/step_program.h"

namespace kvc {

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Device of the programs' tensors.
  virtual at::Device device() const = 0;
  virtual int multiprocessors() const = 0;
  // Bytes that can still be allocated there.
  virtual std::int64_t free_bytes() const = 0;
  // Zeros of int32 that programs write and the CPU reads.
  virtual at::Tensor host_zeros(std::int64_t count) = 0;

  // Queues all launches, once. Launches and replays run in queue order, after what torch has queued. Error if
  // one cannot run; likewise below.
  virtual void run(const StepProgram& program) = 0;
  // Keeps the program for replay(). Its memory must not move meanwhile.
  virtual void prepare(const StepProgram& program) = 0;
  virtual void replay() = 0;
  // Returns when at most `under_way` (0 or 1) of the queued runs and replays have not ended.
  virtual void wait(int under_way) = 0;
};

}  // namespace kvc
