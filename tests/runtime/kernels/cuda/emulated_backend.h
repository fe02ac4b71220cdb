// Kernels through the CPU emulator, in CPU memory.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "tests/runtime/kernels/cuda/emulated_thread.h"
#include "tests/runtime/kernels/cuda/kernel_backend.h"

namespace kvc::testing {

class EmulatedBackend : public KernelBackend {
 public:
  explicit EmulatedBackend(ThreadOrder order) : order_(order) {}

  void* allocate(std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from, std::size_t bytes) override;

  void run(const DenseAttention& params) override;
  void run(const CombinePartials& params) override;
  void run(const RankAttention& params) override;
  void run(const ProjectValues& params) override;
  void run(const FuseRows& params) override;

 private:
  ThreadOrder order_;
  std::deque<std::unique_ptr<std::uint8_t[]>> memory_;
};

}  // namespace kvc::testing
