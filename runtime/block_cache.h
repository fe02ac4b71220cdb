// Keeps large freed blocks for the next tensors: a prompt's pieces and layers need the same sizes
// repeatedly, and the system clears every fresh page.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace kvc {

// Kept and used blocks together never take more than the peak of used ones plus a quarter of what that exceeds
// the use at the last release; a block that does not fit replaces those kept longest.
class BlockCache final : public c10::Allocator {
 public:
  // The cache of CPU tensors, active from the first call until the process ends.
  static BlockCache& of_process();

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &give_up; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // Returns kept blocks to the system, and also free memory of malloc and matrix products.
  void release();
  std::size_t kept_bytes() const;
  std::size_t used_bytes() const;  // of large blocks, likewise

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };
  BlockCache() = default;
  static void give_up(void* data);
  Block take(std::size_t bytes);
  std::vector<Block>::iterator smallest_kept(std::size_t least, std::size_t most);
  std::size_t limit(std::size_t bytes) const;
  void make_room(std::size_t bytes);
  void keep(void* data);

  mutable std::mutex mutex_;
  std::vector<Block> kept_;  // longest first
  std::unordered_map<void*, std::size_t> used_;
  std::size_t kept_bytes_ = 0, used_bytes_ = 0, most_bytes_ = 0;
  std::size_t lasting_bytes_ = 0;  // of blocks that were used at the last release
};

}  // namespace kvc
