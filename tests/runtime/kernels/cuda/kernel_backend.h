// Where the cases of tests run kernels: the CPU emulator in the CPU's memory (emulated_backend.h), or a GPU in its own
// (gpu_backend.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "runtime/kernels/cuda/step_program.h"

namespace kvc::testing {

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  // Throws std::runtime_error where a launch fails.
  virtual void run(const KernelLaunch& launch) = 0;

  // There as long as itself; 256-byte aligned.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;

  template <class T>
  T* upload(const std::vector<T>& numbers) {
    static_assert(std::is_trivially_copyable_v<T>);
    auto* memory = static_cast<T*>(allocate(numbers.size() * sizeof(T)));
    write(memory, numbers.data(), numbers.size() * sizeof(T));
    return memory;
  }
  // For numbers that are none, so that what no kernel wrote shows.
  template <class T>
  T* unwritten(std::size_t count) {
    std::vector<T> numbers(count);
    std::fill_n(reinterpret_cast<unsigned char*>(numbers.data()), count * sizeof(T), 0xFF);
    return upload(numbers);
  }
  template <class T>
  std::vector<T> download(const T* from, std::size_t count) {
    std::vector<T> numbers(count);
    read(numbers.data(), from, count * sizeof(T));
    return numbers;
  }
};

}  // namespace kvc::testing
