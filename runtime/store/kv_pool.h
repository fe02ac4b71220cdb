// Memory of all KV caches of an engine: allocates, shares and frees blocks of fixed sizes. Not for
// concurrent use. Does not use torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>

namespace kvc {

struct KvSlab;

// A reference to one block. Copies share it; the last one returns it to its pool, which must still
// exist.
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

  // A block of `bytes` bytes, uninitialised, aligned to 8 bytes if `bytes` is a multiple of 8.
  KvBlock allocate(std::int64_t bytes);

  std::int64_t page_tokens() const { return page_tokens_; }
  // Bytes of blocks in use; a shared block counts once.
  std::int64_t allocated_bytes() const { return allocated_; }
  std::int64_t peak_bytes() const { return peak_; }
  // That blocks with several owners would take in addition if each owner had a copy.
  std::int64_t shared_bytes() const { return shared_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t num_slabs() const;

 private:
  friend class KvBlock;
  // Blocks of one size. A slab is memory for many of them; it is unmapped when no block is in use.
  struct BlockSize {
    std::map<std::int64_t, std::unique_ptr<KvSlab>> slabs;  // by number
    std::set<std::int64_t> open;                            // numbers of slabs with a free block
    std::int64_t next_number = 0;
  };
  static KvSlab& open_slab(BlockSize& size, std::int64_t block_bytes);
  void share(KvSlab& slab, std::int64_t index);
  void release(KvSlab& slab, std::int64_t index);  // by one owner

  std::int64_t page_tokens_;
  std::int64_t allocated_ = 0, peak_ = 0, shared_ = 0, num_blocks_ = 0;
  std::map<std::int64_t, BlockSize> sizes_;  // by bytes of a block
};

}  // namespace kvc
