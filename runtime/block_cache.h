// Large blocks of memory that tensors gave up, kept for the next tensors: a prompt's pieces and layers need
// the same ones again and again, and the system clears every page that it gives.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace kvc {

// Kept and used blocks together never take more than the used ones once did and a quarter of those of them that were not
// in use at the last release: what does not fit takes the place of the blocks that were kept longest.
class BlockCache final : public c10::Allocator {
 public:
  // That of tensors in the CPU's memory, from the first call on until the process ends.
  static BlockCache& of_process();

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &give_up; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // What is kept goes back to the system, and so does what malloc and matrix products hold.
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
