#include "runtime/store/kv_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "core/arithmetic.h"
#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kMinSlabBytes = std::int64_t{256} << 10;
// Once as much of a size is in use, its slabs have a huge page: attention that meets every page once would
// otherwise spend its time looking up where they are.
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // from Linux 6.1 on
#endif
constexpr std::int64_t kMinSlabBlocks = 8;

std::int64_t system_page() {
  static const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

// Blocks of a slab of at least `bytes` bytes: enough, and of up to twice as many the number that leaves the least of
// its last page.
std::int64_t slab_blocks(std::int64_t block_bytes, std::int64_t bytes) {
  const std::int64_t least = std::max(kMinSlabBlocks, (bytes + block_bytes - 1) / block_bytes);
  const auto rest = [&](std::int64_t blocks) {
    return round_up(blocks * block_bytes, system_page()) - blocks * block_bytes;
  };
  std::int64_t best = least;
  for (std::int64_t blocks = least; blocks < 2 * least && rest(best) > 0; ++blocks) {
    if (rest(blocks) * best < rest(best) * blocks) {
      best = blocks;
    }
  }
  return best;
}

std::byte* map_pages(std::int64_t bytes) {
  void* memory = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KVC_CHECK(memory != MAP_FAILED,
            "KV cache: no memory for {} more bytes: {}; shorten the text, or store less with "
            "--kv-dtype int8 or a smaller --kept-ratio",
            bytes, std::strerror(errno));
  return static_cast<std::byte*>(memory);
}

// The same from a multiple of kHugePage on.
std::byte* map_aligned_pages(std::int64_t bytes) {
  std::byte* memory = map_pages(bytes + kHugePage);
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(memory));
  const std::int64_t before = round_up(address, kHugePage) - address;
  if (before > 0) {
    ::munmap(memory, static_cast<std::size_t>(before));
  }
  ::munmap(memory + before + bytes, static_cast<std::size_t>(kHugePage - before));
  return memory + before;
}

}  // namespace

struct KvSlab {
  KvSlab(std::int64_t slab_number, std::int64_t bytes_of_block, bool huge)
      : number(slab_number), block_bytes(bytes_of_block), is_huge(huge), wants_huge_pages(huge) {
    const std::int64_t blocks = slab_blocks(block_bytes, is_huge ? kHugePage : kMinSlabBytes);
    bytes = round_up(blocks * block_bytes, system_page());
    base = is_huge ? map_aligned_pages(bytes) : map_pages(bytes);
    owners.assign(static_cast<std::size_t>(blocks), 0);
    free.resize(static_cast<std::size_t>(blocks));
    std::iota(free.begin(), free.end(), std::int64_t{0});
  }
  ~KvSlab() { ::munmap(base, static_cast<std::size_t>(bytes)); }
  KvSlab(const KvSlab&) = delete;
  KvSlab& operator=(const KvSlab&) = delete;

  std::uint32_t& owners_of(std::int64_t index) { return owners[static_cast<std::size_t>(index)]; }
  bool is_empty() const { return free.size() == owners.size(); }

  // True if a byte of first .. last - 1 is part of a block in use.
  bool is_used(std::int64_t first, std::int64_t last) const {
    const auto num_blocks = static_cast<std::int64_t>(owners.size());
    for (std::int64_t block = first / block_bytes; block < num_blocks && block * block_bytes < last;
         ++block) {
      if (owners[static_cast<std::size_t>(block)] != 0) {
        return true;
      }
    }
    return false;
  }

  // Once all blocks are in use, and so all memory: in huge pages as far as these are whole. Where the system has none,
  // all is as without.
  void use_huge_pages() {
    if (wants_huge_pages) {
      wants_huge_pages = false;
      ::madvise(base, static_cast<std::size_t>(round_down(bytes, kHugePage)), MADV_COLLAPSE);
    }
  }

  // The first that is free: blocks that are taken one after the other are read so, too.
  std::int64_t take() {
    std::pop_heap(free.begin(), free.end(), std::greater());
    const std::int64_t index = free.back();
    free.pop_back();
    return index;
  }
  void put_back(std::int64_t index) {
    free.push_back(index);
    std::push_heap(free.begin(), free.end(), std::greater());
    wants_huge_pages = wants_huge_pages || (is_huge && free.size() >= owners.size() / 4);
  }

  // Pages that the free block `index` lies in, and no block in use, go back to the system.
  void drop_pages(std::int64_t index) const {
    const std::int64_t page = system_page();
    const std::int64_t begin = index * block_bytes, end = begin + block_bytes;
    std::int64_t first = round_down(begin, page), last = round_up(end, page);
    if (is_used(first, begin)) {
      first += page;
    }
    if (is_used(end, last)) {
      last -= page;
    }
    if (first < last) {
      ::madvise(base + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
    }
  }

  KvPool* pool = nullptr;
  std::int64_t number;
  std::int64_t block_bytes;
  std::int64_t bytes = 0;
  std::byte* base = nullptr;
  bool is_huge;
  bool wants_huge_pages;              // but has none
  std::vector<std::uint32_t> owners;  // of each block; 0: free
  std::vector<std::int64_t> free;     // blocks, a heap whose front is the first
};

KvBlock::KvBlock(const KvBlock& other) : slab_(other.slab_), index_(other.index_) {
  if (slab_ != nullptr) {
    slab_->pool->share(*slab_, index_);
  }
}

KvBlock::KvBlock(KvBlock&& other) noexcept
    : slab_(std::exchange(other.slab_, nullptr)), index_(other.index_) {}

KvBlock& KvBlock::operator=(KvBlock other) noexcept {
  std::swap(slab_, other.slab_);
  std::swap(index_, other.index_);
  return *this;
}

KvBlock::~KvBlock() {
  if (slab_ != nullptr) {
    slab_->pool->release(*slab_, index_);
  }
}

std::byte* KvBlock::data() const { return slab_->base + index_ * slab_->block_bytes; }

bool KvBlock::is_shared() const { return slab_->owners_of(index_) > 1; }

KvPool::KvPool(std::int64_t page_tokens) : page_tokens_(page_tokens) {
  KVC_CHECK(page_tokens >= 1, "KV cache: pages of {} tokens; pass at least 1", page_tokens);
}

KvPool::~KvPool() = default;

// The open slab of the lowest number: what is left of the others empties.
KvSlab& KvPool::open_slab(BlockSize& size, std::int64_t block_bytes) {
  if (size.open.empty()) {
    const std::int64_t number = size.next_number++;
    std::int64_t held = 0;
    for (const auto& [_, slab] : size.slabs) {
      held += slab->bytes;
    }
    size.slabs.emplace(number, std::make_unique<KvSlab>(number, block_bytes, held >= kHugePage));
    size.open.insert(number);
  }
  return *size.slabs.at(*size.open.begin());
}

KvBlock KvPool::allocate(std::int64_t bytes) {
  KVC_CHECK(bytes >= 1, "KV cache: a block of {} bytes", bytes);
  BlockSize& size = sizes_[bytes];
  KvSlab& slab = open_slab(size, bytes);
  slab.pool = this;
  const std::int64_t index = slab.take();
  slab.owners_of(index) = 1;
  if (slab.free.empty()) {
    size.open.erase(slab.number);
    slab.use_huge_pages();
  }
  ++num_blocks_;
  allocated_ += bytes;
  peak_ = std::max(peak_, allocated_);
  return {&slab, index};
}

void KvPool::share(KvSlab& slab, std::int64_t index) {
  ++slab.owners_of(index);
  shared_ += slab.block_bytes;
}

void KvPool::release(KvSlab& slab, std::int64_t index) {
  if (--slab.owners_of(index) > 0) {
    shared_ -= slab.block_bytes;
    return;
  }
  BlockSize& size = sizes_.at(slab.block_bytes);
  slab.put_back(index);
  size.open.insert(slab.number);
  --num_blocks_;
  allocated_ -= slab.block_bytes;
  if (slab.is_empty()) {
    size.open.erase(slab.number);
    size.slabs.erase(slab.number);
  } else {
    slab.drop_pages(index);
  }
}

std::int64_t KvPool::num_slabs() const {
  std::int64_t count = 0;
  for (const auto& [bytes, size] : sizes_) {
    count += static_cast<std::int64_t>(size.slabs.size());
  }
  return count;
}

}  // namespace kvc
