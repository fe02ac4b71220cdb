// The blocks of one store, in order: copies share them, and a shared block is copied before it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/store/kv_pool.h"

namespace kvc {

class BlockList {
 public:
  BlockList(std::shared_ptr<KvPool> pool, std::int64_t block_bytes)
      : pool_(std::move(pool)), block_bytes_(block_bytes) {}
  BlockList(const BlockList&) = default;
  BlockList(BlockList&&) = default;
  // Blocks are returned before their pool is destroyed.
  BlockList& operator=(BlockList other) noexcept;

  std::int64_t size() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t bytes() const { return size() * block_bytes_; }
  std::int64_t block_bytes() const { return block_bytes_; }
  const KvPool& pool() const { return *pool_; }
  const std::shared_ptr<KvPool>& shared_pool() const { return pool_; }

  // Appends new blocks, or drops the last ones.
  void resize(std::int64_t count);
  const std::byte* data(std::int64_t index) const {
    return static_cast<const std::byte*>(table_[static_cast<std::size_t>(index)]);
  }
  // The last block is also another list's.
  bool shares_tail() const { return !blocks_.empty() && blocks_.back().is_shared(); }
  // Memory of a block that only this list uses: a shared block is copied first.
  std::byte* writable(std::int64_t index);
  // [size]; valid until the next call of resize or writable.
  const void* const* table() const { return table_.data(); }

 private:
  std::shared_ptr<KvPool> pool_;
  std::int64_t block_bytes_;
  std::vector<KvBlock> blocks_;
  std::vector<const void*> table_;  // their addresses
};

}  // namespace kvc
