#include "runtime/store/block_list.h"

#include <cstring>
#include <utility>

namespace kvc {

BlockList& BlockList::operator=(BlockList other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(block_bytes_, other.block_bytes_);
  std::swap(blocks_, other.blocks_);
  std::swap(table_, other.table_);
  return *this;
}

void BlockList::resize(std::int64_t count) {
  while (size() > count) {
    blocks_.pop_back();
    table_.pop_back();
  }
  while (size() < count) {
    blocks_.push_back(pool_->allocate(block_bytes_));
    table_.push_back(blocks_.back().data());
  }
}

std::byte* BlockList::writable(std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  if (blocks_[at].is_shared()) {
    KvBlock copy = pool_->allocate(block_bytes_);
    std::memcpy(copy.data(), blocks_[at].data(), static_cast<std::size_t>(block_bytes_));
    blocks_[at] = std::move(copy);
    table_[at] = blocks_[at].data();
  }
  return blocks_[at].data();
}

}  // namespace kvc
