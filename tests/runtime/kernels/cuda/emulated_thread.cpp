#include "tests/runtime/kernels/cuda/emulated_thread.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "tests/runtime/kernels/cuda/emulated_block.h"

namespace kvc::testing {

int EmulatedThread::count() const { return block_->all_.size; }
int EmulatedThread::block_x() const { return block_->block_.x; }
int EmulatedThread::block_y() const { return block_->block_.y; }
int EmulatedThread::block_z() const { return block_->block_.z; }
int EmulatedThread::grid_x() const { return block_->grid_.x; }
std::uint8_t* EmulatedThread::shared() const { return block_->shared_.data()->bytes; }

void EmulatedThread::wait_for(const std::uint32_t* counter, int least) {
  block_->wait_for(counter, static_cast<std::uint32_t>(least));
}

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

namespace {

// One after the other.
void run_blocks(BlockEmulator& emulator, const std::vector<LaunchGrid>& blocks) {
  for (const LaunchGrid& block : blocks) {
    emulator.begin(block);
    emulator.go_on();
    if (!emulator.has_ended()) {
      emulator.throw_waiting();
    }
  }
}

void run_at_once(std::vector<std::unique_ptr<BlockEmulator>>& emulators) {
  for (bool any = true; any;) {
    any = false;
    for (const auto& emulator : emulators) {
      any |= !emulator->has_ended() && emulator->go_on();
    }
  }
  for (const auto& emulator : emulators) {
    if (!emulator->has_ended()) {
      emulator->throw_waiting();
    }
  }
}

}  // namespace

void run_grid(LaunchGrid grid, int threads, std::size_t shared_bytes, ThreadOrder order,
              const std::function<void(EmulatedThread&)>& kernel) {
  std::vector<LaunchGrid> blocks;
  const int count = grid.x * grid.y * grid.z;
  for (int i = 0; i < count; ++i) {
    const int block = order == ThreadOrder::kForward ? i : count - 1 - i;
    blocks.push_back({block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y});
  }
  if (!grid.at_once) {
    BlockEmulator emulator(grid, threads, shared_bytes, order, kernel);
    run_blocks(emulator, blocks);
    return;
  }
  std::vector<std::unique_ptr<BlockEmulator>> emulators;
  for (const LaunchGrid& block : blocks) {
    emulators.push_back(
        std::make_unique<BlockEmulator>(grid, threads, shared_bytes, order, kernel,
                                        emulators.size() * static_cast<std::size_t>(threads)));
    emulators.back()->begin(block);
  }
  run_at_once(emulators);
}

}  // namespace kvc::testing
