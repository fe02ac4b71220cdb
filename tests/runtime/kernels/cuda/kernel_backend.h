// Where the cases of tests run CUDA kernels: the CPU emulator (emulated_backend.h) or a GPU (cuda_backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rank.h"

namespace kvc::testing {

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  // Memory of the backend, there as long as itself; 256-byte aligned.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;

  // Throws std::runtime_error where a launch fails.
  virtual void run(const DenseAttention& params) = 0;
  virtual void run(const CombinePartials& params) = 0;
  virtual void run(const RankAttention& params) = 0;  // both launches
  virtual void run(const ProjectValues& params) = 0;

  template <class T>
  T* upload(const std::vector<T>& numbers) {
    static_assert(std::is_trivially_copyable_v<T>);
    auto* memory = static_cast<T*>(allocate(numbers.size() * sizeof(T)));
    write(memory, numbers.data(), numbers.size() * sizeof(T));
    return memory;
  }
  // Of numbers that are none, so that what no kernel wrote shows.
  template <class T>
  T* unwritten(std::size_t count) {
    std::vector<T> numbers(count);
    std::memset(static_cast<void*>(numbers.data()), 0xFF, count * sizeof(T));
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
