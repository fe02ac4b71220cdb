// The CPU's memory for cases of kernels.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>

#include "tests/runtime/kernels/cuda/kernel_memory.h"

namespace kvc::testing {

class HostMemory : public KernelMemory {
 public:
  void* allocate(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 256;
    blocks_.push_back(std::make_unique<std::uint8_t[]>(bytes + kAlignment));
    const auto address = reinterpret_cast<std::uintptr_t>(blocks_.back().get());
    return blocks_.back().get() + (kAlignment - address % kAlignment) % kAlignment;
  }
  void write(void* to, const void* from, std::size_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
  }
  void read(void* to, const void* from, std::size_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
  }

 private:
  std::deque<std::unique_ptr<std::uint8_t[]>> blocks_;
};

}  // namespace kvc::testing
