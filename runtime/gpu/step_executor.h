// What runs the launches of a decoding step: a GPU (cuda_executor.h), or in tests the CPU emulator.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "runtime/kernels/cuda/step_program.h"

namespace kvc {

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Where the tensors lie that programs work on.
  virtual at::Device device() const = 0;
  virtual int multiprocessors() const = 0;
  // Bytes of shared memory that a block may have.
  virtual int shared_bytes() const = 0;
  // Bytes that can still be allocated there.
  virtual std::int64_t free_bytes() const = 0;
  // Zeros of int32 that programs write and the CPU reads.
  virtual at::Tensor host_zeros(std::int64_t count) const = 0;

  // Queues all launches, once. They, and replays, run in the order in which they are queued, behind what torch
  // has queued. Error where one cannot run; likewise below.
  virtual void run(const StepProgram& program) = 0;
  // Keeps the program for replay(). Its memory stays where it is for as long.
  virtual void prepare(const StepProgram& program) = 0;
  virtual void replay() = 0;
  // Returns once at most `under_way` of what was queued by run() and replay() has not ended: 0 or 1.
  virtual void wait(int under_way) = 0;
};

}  // namespace kvc
