// Memory of all KV caches of an engine: blocks of fixed sizes, handed out, shared and taken back. Not for
// concurrent use. Needs no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>

namespace kvc {

struct KvSlab;

// A hold on one block. Copies share the block; it returns to its pool, which must still live, with the
// last of them.
class KvBlock {
 public:
  KvBlock() = default;
  KvBlock(const KvBlock& other);
  KvBlock(KvBlock&& other) noexcept;
  KvBlock& operator=(KvBlock other) noexcept;
  ~KvBlock();

  std::byte* data() const;
  bool is_shared() const;

 private:
  friend class KvPool;
  KvBlock(KvSlab* slab, std::int64_t index) : slab_(slab), index_(index) {}
  KvSlab* slab_ = nullptr;
  std::int64_t index_ = 0;
};

class KvPool {
 public:
  // `page_tokens`: rows of one block of any store.
  explicit KvPool(std::int64_t page_tokens);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  // A block of `bytes` bytes, of any content, aligned to 8 bytes where `bytes` is a multiple of 8.
  KvBlock allocate(std::int64_t bytes);

  std::int64_t page_tokens() const { return page_tokens_; }
  // Of the blocks in use, each counted once, however many share it.
  std::int64_t allocated_bytes() const { return allocated_; }
  std::int64_t peak_bytes() const { return peak_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t num_slabs() const;

 private:
  friend class KvBlock;
  // Blocks of one size. A slab is memory for many of them; one without a block in use is unmapped.
  struct BlockSize {
    std::map<std::int64_t, std::unique_ptr<KvSlab>> slabs;  // by number
    std::set<std::int64_t> open;                            // numbers of slabs with a free block
    std::int64_t next_number = 0;
  };
  static KvSlab& open_slab(BlockSize& size, std::int64_t block_bytes);
  void release(KvSlab& slab, std::int64_t index);

  std::int64_t page_tokens_;
  std::int64_t allocated_ = 0, peak_ = 0, num_blocks_ = 0;
  std::map<std::int64_t, BlockSize> sizes_;  // by bytes of a block
};

}  // namespace kvc
