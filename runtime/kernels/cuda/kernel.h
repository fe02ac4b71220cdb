// A kernel is a type with its name and a function of one thread:
//
//   struct EmbedRowsKernel : Kernel<EmbedRows, 128> {
//     static constexpr const char* kName = "embed_rows";
//     template <class Thread>
//     static KVC_DEVICE void run(const EmbedRows& params, Thread& thread);
//   };
//
// Beside it stands the one place that says how its arguments are launched, launch_kernels(params, launcher). A launcher
// is the GPU's (cuda_launcher.cuh) or, in tests, the CPU's (tests/runtime/kernels/cuda/emulated_launcher.h). It has
//
//   threads(most)      of a block whose kernel takes any multiple of 32 up to `most`
//   shared_bytes()     dynamic shared memory that a block may have
//   run<Kernel>(params, grid, threads, shared_bytes = 0)
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// The most threads that a block has, and the blocks that a multiprocessor has to hold; 0: any number.
template <class Arguments, int kMostThreads, int kBlocksAtOnce = 0>
struct Kernel {
  using Params = Arguments;
  static constexpr int kThreads = kMostThreads, kBlocks = kBlocksAtOnce;
};

// The sum of every lane's number, the same bits in all lanes of the warp.
template <class Thread>
KVC_DEVICE float warp_sum(Thread& thread, float x) {
  KVC_UNROLL
  for (int lanes = 16; lanes >= 1; lanes /= 2) {
    x += thread.shuffle_xor(x, lanes);
  }
  return x;
}
// The largest, likewise.
template <class Thread>
KVC_DEVICE float warp_max(Thread& thread, float x) {
  KVC_UNROLL
  for (int lanes = 16; lanes >= 1; lanes /= 2) {
    x = fmaxf(x, thread.shuffle_xor(x, lanes));
  }
  return x;
}

// For every thread's number: the sum of those of lower threads, and of all. memory: [2, threads], shared
struct BlockSum {
  std::uint64_t before, total;
};
template <class Thread>
KVC_DEVICE BlockSum block_prefix_sum(Thread& thread, std::uint64_t own, std::uint64_t* memory) {
  const int threads = thread.count(), i = thread.index();
  std::uint64_t *from = memory, *to = memory + threads;
  from[i] = own;
  thread.sync();
  for (int step = 1; step < threads; step *= 2) {
    to[i] = from[i] + (i >= step ? from[i - step] : 0);
    thread.sync();
    std::uint64_t* const next = from;
    from = to;
    to = next;
  }
  const BlockSum sum{from[i] - own, from[threads - 1]};
  thread.sync();
  return sum;
}

struct LaunchGrid {
  int x = 1, y = 1, z = 1;
  bool at_once =
      false;  // blocks wait for one another: refused where the GPU cannot hold all of them
};

constexpr int divide_up(std::int64_t count, std::int64_t by) {
  return static_cast<int>((count + by - 1) / by);
}

// launch(T{}) of a 16-bit type.
template <class Launch>
LaunchError with_type(DeviceElement element, const Launch& launch) {
  return element == DeviceElement::kBFloat16 ? launch(BFloat16{}) : launch(Float16{});
}

template <class Launch>
LaunchError with_flag(bool flag, const Launch& launch) {
  return flag ? launch(std::true_type{}) : launch(std::false_type{});
}

// launch(std::integral_constant) of a number that is among those that there are instances for.
template <int... kNumbers, class Launch>
LaunchError with_number(int number, const Launch& launch) {
  LaunchError error = "no kernel for " + std::to_string(number);
  const auto try_one = [&](auto one) {
    if (number == one) {
      error = launch(one);
    }
  };
  (try_one(std::integral_constant<int, kNumbers>{}), ...);
  return error;
}

}  // namespace kvc
