// Steps through the CPU emulator, on tensors of the CPU.
#pragma once

#include <cstdint>

#include "runtime/gpu/step_executor.h"
#include "tests/runtime/kernels/cuda/emulated_backend.h"
#include "tests/runtime/kernels/cuda/emulated_thread.h"

namespace kvc::testing {

class EmulatedExecutor : public StepExecutor {
 public:
  explicit EmulatedExecutor(std::int64_t free_bytes = std::int64_t{1} << 40)
      : free_bytes_(free_bytes) {}

  at::Device device() const override { return at::kCPU; }
  int multiprocessors() const override { return 2; }
  std::int64_t free_bytes() const override { return free_bytes_; }
  at::Tensor host_zeros(std::int64_t count) override { return at::zeros({count}, at::kInt); }
  void run(const StepProgram& program) override;
  void prepare(const StepProgram& program) override { program_ = program; }
  void replay() override { run(program_); }
  void wait(int under_way) override;

 private:
  std::int64_t free_bytes_;
  StepProgram program_;
};

}  // namespace kvc::testing
