// Kernels through the CPU emulator, in CPU memory.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "tests/runtime/kernels/cuda/emulated_thread.h"
#include "tests/runtime/kernels/cuda/kernel_backend.h"

namespace kvc::testing {

// Shared memory of a block: an H100's.
constexpr int kEmulatedSharedBytes = 227 * 1024;

// As launch_cuda(); the instances are in emulated_attention.cpp, emulated_kernels.cpp and emulated_rank.cpp.
template <class Params>
LaunchError launch_emulated(const Params& params, ThreadOrder order);
// Throws std::runtime_error where a launch is refused.
void emulate_launch(const KernelLaunch& launch, ThreadOrder order);

class EmulatedBackend : public KernelBackend {
 public:
  explicit EmulatedBackend(ThreadOrder order) : order_(order) {}

  void run(const KernelLaunch& launch) override { emulate_launch(launch, order_); }
  void* allocate(std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from, std::size_t bytes) override { write(to, from, bytes); }

 private:
  ThreadOrder order_;
  std::deque<std::unique_ptr<std::uint8_t[]>> memory_;
};

}  // namespace kvc::testing
