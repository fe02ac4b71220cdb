#include "runtime/block_cache.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

// Of MKL, which LibTorch's CPU build contains: what matrix products of all threads keep between calls, megabytes behind
// large ones. Absent where LibTorch has other matrix products.
extern "C" void mkl_serv_free_buffers() __attribute__((weak));

namespace kvc {
namespace {

constexpr std::size_t kLargeBytes = std::size_t{1} << 18;
constexpr std::size_t kPageBytes = 4096;  // large blocks begin with a page, others hardly ever do
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kSpareShare = 4;

// The memory of one step's activations serves the next step, instead of going back to the system. Large blocks are
// mappings: within malloc's own memory they leave holes, whose size depends on how threads take turns.
void keep_small_blocks() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargeBytes));
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
#endif
}

void* new_block(std::size_t bytes) {
  void* data = nullptr;
  const bool is_huge = bytes >= kHugePageBytes;
  if (posix_memalign(&data, is_huge ? kHugePageBytes : kPageBytes, bytes) != 0) {
    throw std::bad_alloc();
  }
#ifdef MADV_HUGEPAGE
  if (is_huge) {
    madvise(data, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
#endif
  return data;
}

}  // namespace

BlockCache& BlockCache::of_process() {
  static BlockCache* const cache = [] {
    keep_small_blocks();
    auto* made = new BlockCache;  // tensors may outlive what is destroyed at exit
    c10::SetCPUAllocator(made, /*priority=*/1);
    return made;
  }();
  return *cache;
}

c10::DataPtr BlockCache::allocate(std::size_t bytes) {
  void* data = bytes < kLargeBytes ? c10::alloc_cpu(bytes) : take(bytes).data;
  return {data, data, &give_up, c10::Device(c10::DeviceType::CPU)};
}

void BlockCache::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memcpy(to, from, bytes);
}

// A kept block of about the size, or a new one if that fits, or a kept one of up to twice the size: what is
// given back to the system for a new one will be wanted again.
BlockCache::Block BlockCache::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto best = smallest_kept(bytes, bytes + bytes / 8);
  if (best == kept_.end() && used_bytes_ + bytes + kept_bytes_ > limit(bytes)) {
    best = smallest_kept(bytes, 2 * bytes);
  }
  Block block{nullptr, bytes};
  if (best != kept_.end()) {
    block = *best;
    kept_.erase(best);
    kept_bytes_ -= block.bytes;
  } else {
    make_room(bytes);
    block.data = new_block(bytes);
  }
  used_.emplace(block.data, block.bytes);
  used_bytes_ += block.bytes;
  most_bytes_ = std::max(most_bytes_, used_bytes_);
  return block;
}

std::vector<BlockCache::Block>::iterator BlockCache::smallest_kept(std::size_t least,
                                                                   std::size_t most) {
  auto best = kept_.end();
  for (auto block = kept_.begin(); block != kept_.end(); ++block) {
    if (block->bytes >= least && block->bytes <= most &&
        (best == kept_.end() || block->bytes < best->bytes)) {
      best = block;
    }
  }
  return best;
}

// For all blocks together, once `bytes` more are used.
std::size_t BlockCache::limit(std::size_t bytes) const {
  const std::size_t used = std::max(most_bytes_, used_bytes_ + bytes);
  return used + (used - std::min(used, lasting_bytes_)) / kSpareShare;
}

void BlockCache::make_room(std::size_t bytes) {
  const std::size_t most = limit(bytes);
  auto last = kept_.begin();
  for (; last != kept_.end() && used_bytes_ + bytes + kept_bytes_ > most; ++last) {
    kept_bytes_ -= last->bytes;
    std::free(last->data);
  }
  kept_.erase(kept_.begin(), last);
}

void BlockCache::give_up(void* data) {
  if (reinterpret_cast<std::uintptr_t>(data) % kPageBytes == 0) {
    of_process().keep(data);
  } else {
    c10::free_cpu(data);
  }
}

void BlockCache::keep(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(data);
  if (found == used_.end()) {
    return c10::free_cpu(data);
  }
  kept_.push_back({data, found->second});
  used_bytes_ -= found->second;
  kept_bytes_ += found->second;
  used_.erase(found);
}

void BlockCache::release() {
  const std::lock_guard lock(mutex_);
  for (const Block& block : kept_) {
    std::free(block.data);
  }
  kept_.clear();
  kept_bytes_ = 0;
  most_bytes_ = lasting_bytes_ = used_bytes_;
  if (mkl_serv_free_buffers != nullptr) {
    mkl_serv_free_buffers();
  }
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

std::size_t BlockCache::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

std::size_t BlockCache::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

}  // namespace kvc
