#include "tests/runtime/kernels/cuda/emulated_thread.h"

#include <ucontext.h>

#include <csetjmp>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvc::testing {
namespace {

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
void switch_places(Place& from, Place& to) {
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

// One thread of the kernel that runs. Runs thread after thread of one block after the other.
struct Fiber {
  Place place;
  std::unique_ptr<std::uint8_t[]> stack =
      std::make_unique_for_overwrite<std::uint8_t[]>(kStackBytes);
  const Barrier* barrier = nullptr;  // that it waits at
  int generation = 0;
  bool running = false;
};

}  // namespace

// The fibers of one block at a time.
class BlockEmulator {
 public:
  BlockEmulator(LaunchGrid grid, int threads, std::size_t shared_bytes, ThreadOrder order,
                const std::function<void(EmulatedThread&)>& kernel)
      : grid_(grid),
        order_(order),
        kernel_(kernel),
        warps_(static_cast<std::size_t>(threads / 32)) {
    if (threads % 32 != 0) {
      throw std::runtime_error("threads come in warps of 32");
    }
    shared_.resize(shared_bytes / sizeof(Vector) + 1);
    while (fibers_.size() < static_cast<std::size_t>(threads)) {
      fibers_.push_back(std::make_unique<Fiber>());
      begin(*fibers_.back());
    }
    all_.size = threads;
    for (Warp& warp : warps_) {
      warp.barrier.size = 32;
    }
  }

  void run(LaunchGrid block) {
    block_ = block;
    std::memset(shared_.data(), 0xFF, shared_.size() * sizeof(Vector));
    threads_.clear();
    for (int i = 0; i < all_.size; ++i) {
      threads_.emplace_back(*this, i);
      fiber(static_cast<std::size_t>(i)).running = true;
    }
    for (std::size_t left = threads_.size(); left > 0;) {
      const std::size_t before = steps_;
      for (std::size_t warp = 0; warp < warps_.size(); ++warp) {
        left -= run_warp(order_ == ThreadOrder::kForward ? warp : warps_.size() - 1 - warp);
      }
      if (steps_ == before) {
        fibers_.clear();
        throw std::runtime_error(std::to_string(left) +
                                 " threads wait at a barrier that others do not reach");
      }
    }
    if (!error_.empty()) {
      throw std::runtime_error(error_);
    }
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

  static Fiber& fiber(std::size_t index) { return *fibers_[index]; }
  static void begin(Fiber& fiber) {
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
    if (!next.running || (next.barrier != nullptr && next.barrier->generation == next.generation)) {
      return false;
    }
    ++steps_;
    next.barrier = nullptr;
    current_ = index;
    active() = this;
    switch_places(scheduler_, next.place);
    return !next.running;
  }

  LaunchGrid grid_, block_;
  ThreadOrder order_;
  const std::function<void(EmulatedThread&)>& kernel_;
  std::vector<Vector> shared_;
  static thread_local std::vector<std::unique_ptr<Fiber>> fibers_;  // of all launches
  std::vector<EmulatedThread> threads_;
  std::vector<Warp> warps_;
  Barrier all_;
  Place scheduler_;
  std::size_t current_ = 0, steps_ = 0;
  std::string error_;
};

thread_local std::vector<std::unique_ptr<Fiber>> BlockEmulator::fibers_;

int EmulatedThread::count() const { return block_->all_.size; }
int EmulatedThread::block_x() const { return block_->block_.x; }
int EmulatedThread::block_y() const { return block_->block_.y; }
int EmulatedThread::block_z() const { return block_->block_.z; }
int EmulatedThread::grid_x() const { return block_->grid_.x; }
std::uint8_t* EmulatedThread::shared() const { return block_->shared_.data()->bytes; }

void EmulatedThread::sync() { block_->wait_at(block_->all_); }
void EmulatedThread::sync_warp() {
  block_->wait_at(block_->warps_[static_cast<std::size_t>(warp())].barrier);
}

float EmulatedThread::shuffle(float x, int from) {
  auto& numbers = block_->warps_[static_cast<std::size_t>(warp())].numbers;
  numbers[lane()] = x;
  sync_warp();
  const float result = numbers[from];
  sync_warp();
  return result;
}

const EmulatedThread::Words* EmulatedThread::exchange(const Words& words) {
  auto& all = block_->warps_[static_cast<std::size_t>(warp())].words;
  all[lane()] = words;
  sync_warp();
  return all;
}

std::uint32_t EmulatedThread::transpose(std::uint32_t m) {
  const Words* all = exchange({m, 0, 0, 0, 0, 0});
  // Column lane / 4, rows 2 (lane % 4) and the next.
  const int row = 2 * (lane() % 4), column = lane() / 4;
  std::uint32_t t = 0;
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t word = all[(row + i) * 4 + column / 2].word[0];
    t |= (word >> (16 * (column % 2)) & 0xFFFF) << (16 * i);
  }
  sync_warp();
  return t;
}

void EmulatedThread::load(std::uint32_t (&m)[4], const void* row, bool transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    block_->fail("a matrix's row is not 16-byte aligned");
  }
  auto& rows = block_->warps_[static_cast<std::size_t>(warp())].rows;
  rows[lane()] = row;
  sync_warp();
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int along = 2 * (lane() % 4) + i, across = lane() / 4;
      const int r = transposed ? along : across, c = transposed ? across : along;
      std::memcpy(&pair[i], static_cast<const std::uint8_t*>(rows[8 * matrix + r]) + 2 * c, 2);
    }
    m[matrix] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
  }
  sync_warp();
}

void EmulatedThread::check_copy(const Copy& copy) const {
  const auto to = reinterpret_cast<std::uintptr_t>(copy.to);
  const auto from = reinterpret_cast<std::uintptr_t>(copy.from);
  const auto bytes = static_cast<std::uintptr_t>(copy.bytes);
  if (to % bytes != 0 || from % bytes != 0) {
    block_->fail("an asynchronous copy is not aligned to its size");
  }
}

void EmulatedThread::check_aligned(const void* from, std::size_t bytes) const {
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
    block_->fail("a load is not aligned to its size");
  }
}

void EmulatedThread::commit() { groups_.push_back(std::exchange(pending_, {})); }

void EmulatedThread::finish_copies(std::size_t most_groups) {
  while (groups_.size() > most_groups) {
    for (const Copy& copy : groups_.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, static_cast<std::size_t>(copy.bytes));
      } else {
        std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
      }
    }
    groups_.erase(groups_.begin());
  }
}

void run_grid(LaunchGrid grid, int threads, std::size_t shared_bytes, ThreadOrder order,
              const std::function<void(EmulatedThread&)>& kernel) {
  BlockEmulator emulator(grid, threads, shared_bytes, order, kernel);
  const int blocks = grid.x * grid.y * grid.z;
  for (int i = 0; i < blocks; ++i) {
    const int block = order == ThreadOrder::kForward ? i : blocks - 1 - i;
    emulator.run({block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y});
  }
}

}  // namespace kvc::testing
