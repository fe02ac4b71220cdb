// A block of threads on the CPU, each of which is a fiber.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/kernels/cuda/emulated_thread.h"

namespace kvc::testing {

constexpr std::size_t kStackBytes = 256 * 1024;

struct Barrier {
  int size = 0, arrived = 0, generation = 0;
};

// Where a fiber, or the scheduler of fibers, stopped.
struct Place {
  ucontext_t context;
  std::jmp_buf jump;
  bool entered = true;
};

// A context is entered once. Later switches jump, as contexts make a system call each; the address sanitizer follows
// contexts alone.
inline void switch_places(Place& from, Place& to) {
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&from.context, &to.context);
#else
  if (_setjmp(from.jump) != 0) {
    return;
  }
  if (!std::exchange(to.entered, true)) {
    setcontext(&to.context);
  }
  _longjmp(to.jump, 1);
#endif
}

// One thread of the kernel that runs. Runs thread after thread.
struct Fiber {
  Place place;
  std::unique_ptr<std::uint8_t[]> stack =
      std::make_unique_for_overwrite<std::uint8_t[]>(kStackBytes);
  const Barrier* barrier = nullptr;  // that it waits at
  int generation = 0;
  const std::uint32_t* counter = nullptr;  // or for this to reach `least`
  std::uint32_t least = 0;
  bool running = false;

  bool waits() const {
    return (barrier != nullptr && barrier->generation == generation) ||
           (counter != nullptr && *counter < least);
  }
};

// The fibers of one block at a time, from first_fiber on.
class BlockEmulator {
 public:
  BlockEmulator(LaunchGrid grid, int threads, std::size_t shared_bytes, ThreadOrder order,
                const std::function<void(EmulatedThread&)>& kernel, std::size_t first_fiber = 0)
      : grid_(grid),
        order_(order),
        kernel_(kernel),
        first_fiber_(first_fiber),
        warps_(static_cast<std::size_t>(threads / 32)) {
    if (threads % 32 != 0) {
      throw std::runtime_error("threads come in warps of 32");
    }
    shared_.resize(shared_bytes / sizeof(Vector) + 1);
    while (fibers_.size() < first_fiber + static_cast<std::size_t>(threads)) {
      fibers_.push_back(std::make_unique<Fiber>());
      enter_first(*fibers_.back());
    }
    all_.size = threads;
    for (Warp& warp : warps_) {
      warp.barrier.size = 32;
    }
  }

  void begin(LaunchGrid block) {
    block_ = block;
    // What was not written: no numbers and negative indices in one order, large ones in the other.
    const int unwritten = order_ == ThreadOrder::kForward ? 0xFF : 0x5A;
    std::memset(shared_.data(), unwritten, shared_.size() * sizeof(Vector));
    threads_.clear();
    for (int i = 0; i < all_.size; ++i) {
      threads_.emplace_back(*this, i);
      fiber(static_cast<std::size_t>(i)).running = true;
    }
    left_ = threads_.size();
  }

  // Until all of the block's threads have ended or wait. Returns whether any went on.
  bool go_on() {
    const std::size_t first = steps_;
    for (std::size_t before = steps_ + 1; before != steps_ && left_ > 0;) {
      before = steps_;
      for (std::size_t warp = 0; warp < warps_.size(); ++warp) {
        left_ -= run_warp(order_ == ThreadOrder::kForward ? warp : warps_.size() - 1 - warp);
      }
    }
    if (left_ == 0 && !error_.empty()) {
      throw std::runtime_error(error_);
    }
    return steps_ != first;
  }
  bool has_ended() const { return left_ == 0; }
  [[noreturn]] void throw_waiting() const {
    fibers_.clear();
    throw std::runtime_error(std::to_string(left_) +
                             " threads wait at a barrier that others do not reach");
  }

  void wait_at(Barrier& barrier) {
    if (++barrier.arrived == barrier.size) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    Fiber& waiting = fiber(current_);
    waiting.barrier = &barrier;
    waiting.generation = barrier.generation;
    switch_places(waiting.place, scheduler_);
  }

  void wait_for(const std::uint32_t* counter, std::uint32_t least) {
    Fiber& waiting = fiber(current_);
    waiting.counter = counter;
    waiting.least = least;
    if (waiting.waits()) {
      switch_places(waiting.place, scheduler_);
    }
  }

  void fail(const std::string& error) { error_ = error; }

 private:
  friend class EmulatedThread;
  struct alignas(16) Vector {
    std::uint8_t bytes[16];
  };
  struct Warp {
    Barrier barrier;
    EmulatedThread::Words words[32];
    const void* rows[32];
    float numbers[32];
  };

  // One word of a context's argument cannot hold a pointer; fibers find theirs here.
  static BlockEmulator*& active() {
    static thread_local BlockEmulator* emulator = nullptr;
    return emulator;
  }
  static void enter() {
    for (;;) {
      BlockEmulator& self = *active();
      self.kernel_(self.threads_[self.current_]);
      Fiber& ended = self.fiber(self.current_);
      ended.running = false;
      switch_places(ended.place, self.scheduler_);
    }
  }

  Fiber& fiber(std::size_t index) const { return *fibers_[first_fiber_ + index]; }
  static void enter_first(Fiber& fiber) {
    getcontext(&fiber.place.context);
    fiber.place.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.place.context.uc_stack.ss_size = kStackBytes;
    fiber.place.context.uc_link = nullptr;
    makecontext(&fiber.place.context, &BlockEmulator::enter, 0);
    fiber.place.entered = false;
  }

  // Until all of the warp's threads have ended or wait for other warps. Returns how many have ended.
  std::size_t run_warp(std::size_t warp) {
    std::size_t ended = 0;
    for (std::size_t before = steps_ + 1; before != steps_;) {
      before = steps_;
      for (std::size_t lane = 0; lane < 32; ++lane) {
        ended += step(32 * warp + (order_ == ThreadOrder::kForward ? lane : 31 - lane)) ? 1 : 0;
      }
    }
    return ended;
  }

  // Whether the thread has ended.
  bool step(std::size_t index) {
    Fiber& next = fiber(index);
    if (!next.running || next.waits()) {
      return false;
    }
    ++steps_;
    next.barrier = nullptr;
    next.counter = nullptr;
    current_ = index;
    active() = this;
    switch_places(scheduler_, next.place);
    return !next.running;
  }

  LaunchGrid grid_, block_;
  ThreadOrder order_;
  const std::function<void(EmulatedThread&)>& kernel_;
  std::size_t first_fiber_;
  std::vector<Vector> shared_;
  static inline thread_local std::vector<std::unique_ptr<Fiber>> fibers_;  // of all launches
  std::vector<EmulatedThread> threads_;
  std::vector<Warp> warps_;
  Barrier all_;
  Place scheduler_;
  std::size_t current_ = 0, steps_ = 0, left_ = 0;
  std::string error_;
};

}  // namespace kvc::testing
