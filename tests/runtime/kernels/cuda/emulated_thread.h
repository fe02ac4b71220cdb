// CUDA kernels on the CPU: every thread of a block is a fiber, so that a kernel's own source runs, with its
// barriers, shuffles, asynchronous copies and tensor-core products, without a GPU.
//
// It is stricter than a GPU: shared memory starts as numbers that are none, an asynchronous copy happens only
// when wait() demands it, and each warp runs ahead of all others until a barrier of the block holds it, in an
// order that tests vary. A missing barrier or wait then shows as a wrong result, a barrier that not all threads
// reach as an exception.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc::testing {

class BlockEmulator;

// The functions of DeviceThread (runtime/kernels/cuda/device_thread.cuh), which says what they do.
class EmulatedThread {
 public:
  EmulatedThread(BlockEmulator& block, int index) : block_(&block), index_(index) {}

  int index() const { return index_; }
  int count() const;
  int block_x() const;
  int block_y() const;
  int block_z() const;
  int grid_x() const;
  int warp() const { return index_ / 32; }
  int lane() const { return index_ % 32; }
  std::uint8_t* shared() const;

  void sync();
  void sync_warp();
  float shuffle_xor(float x, int lanes) { return shuffle(x, lane() ^ lanes); }
  float shuffle(float x, int lane);

  template <int kWords>
  void load_words(std::uint32_t (&to)[kWords], const void* from) {
    check_aligned(from, sizeof(to));
    std::memcpy(to, from, sizeof(to));
  }
  template <int kWords>
  void load_once(std::uint32_t (&to)[kWords], const void* from) {
    load_words(to, from);
  }
  void add_shared(std::uint64_t* sum, std::uint64_t x) { *sum += x; }
  bool is_last_of(std::uint32_t* counter, int count) {
    *counter = *counter + 1 == static_cast<std::uint32_t>(count) ? 0 : *counter + 1;
    return *counter == 0;
  }
  void wait_for(const std::uint32_t* counter, int least);
  void prefetch(const void*) {}

  template <int kBytes>
  void copy_async(void* shared, const void* global, bool valid) {
    pending_.push_back({shared, valid ? global : nullptr, kBytes});
    check_copy(pending_.back());
  }
  void commit();
  template <int kGroups>
  void wait() {
    finish_copies(kGroups);
  }

  template <class T>
  void multiply_add(T, float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    const Words* all = exchange({a[0], a[1], a[2], a[3], b[0], b[1]});
    for (int i = 0; i < 4; ++i) {
      const int row = lane() / 4 + 8 * (i / 2), column = 2 * (lane() % 4) + i % 2;
      for (int k = 0; k < 16; ++k) {
        const Words& of_row = all[row % 8 * 4 + k % 8 / 2];
        const Words& of_column = all[column * 4 + k % 8 / 2];
        c[i] += half<T>(of_row.word[row / 8 + 2 * (k / 8)], k % 2) *
                half<T>(of_column.word[4 + k / 8], k % 2);
      }
    }
    sync_warp();
  }
  void load_matrices(std::uint32_t (&m)[4], const void* row) { load(m, row, false); }
  void load_matrices_transposed(std::uint32_t (&m)[4], const void* row) { load(m, row, true); }
  std::uint32_t transpose(std::uint32_t m);

 private:
  friend class BlockEmulator;
  struct Words {
    std::uint32_t word[6];
  };
  struct Copy {
    void* to;
    const void* from;  // null: zeros
    int bytes;
  };

  template <class T>
  static float half(std::uint32_t word, int index) {
    return to_float(T{static_cast<std::uint16_t>(word >> (16 * index))});
  }
  // Every lane of the warp gives its words; those of all lanes, valid until the warp's next barrier.
  const Words* exchange(const Words& words);
  void load(std::uint32_t (&m)[4], const void* row, bool transposed);
  void check_copy(const Copy& copy) const;
  void check_aligned(const void* from, std::size_t bytes) const;
  void finish_copies(std::size_t most_groups);

  BlockEmulator* block_;
  int index_;
  std::vector<Copy> pending_;
  std::vector<std::vector<Copy>> groups_;
};

enum class ThreadOrder { kForward, kBackward };  // of blocks too

// Runs kernel(thread) for all threads of all blocks, one block after the other; with grid.at_once a block is left where its
// threads wait for others. Throws std::runtime_error where threads wait for one another for ever or copies are misaligned.
void run_grid(LaunchGrid grid, int threads, std::size_t shared_bytes, ThreadOrder order,
              const std::function<void(EmulatedThread&)>& kernel);

}  // namespace kvc::testing
