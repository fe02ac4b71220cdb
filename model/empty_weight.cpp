#include "model/tensor_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::size_t kHugePage = std::size_t{1} << 21;
// A slab reserves addresses; memory is taken page by page. Limits of a process count addresses, so slabs start small and double.
constexpr std::size_t kFirstSlabBytes = std::size_t{1} << 25;
constexpr std::size_t kMostSlabBytes = std::size_t{1} << 28;
constexpr std::size_t kSmallBytes = std::size_t{1} << 14;
constexpr std::size_t kAlignment = 128;

std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }

// Addresses for weights one after the other, with memory in huge pages where the system has them.
class Slab {
 public:
  explicit Slab(std::size_t bytes) : mapped_(bytes + kHugePage) {
    memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
    KVC_CHECK(memory_ != MAP_FAILED,
              "no memory for weights of {} bytes; free some, or raise the limit on this process",
              bytes);
    const std::uintptr_t first = round_up(reinterpret_cast<std::uintptr_t>(memory_), kHugePage);
    free_[first] = first + bytes;
#ifdef MADV_HUGEPAGE
    // Whole ones only: what follows takes no more memory than it fills. Where this fails, all is as without.
    madvise(reinterpret_cast<void*>(first), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  }
  Slab(const Slab&) = delete;

  std::size_t bytes() const { return mapped_ - kHugePage; }
  ~Slab() { munmap(memory_, mapped_); }

  // Null: no room is left.
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto room = std::find_if(free_.begin(), free_.end(), [&](const auto& range) {
      return range.second - range.first >= bytes;
    });
    if (room == free_.end()) {
      return nullptr;
    }
    const auto [first, last] = *room;
    free_.erase(room);
    const std::uintptr_t next = first + round_up(bytes, kAlignment);
    if (next < last) {
      free_[next] = last;
    }
    return reinterpret_cast<void*>(first);
  }

  // Memory goes back to the system as far as no huge page is in use.
  void give_back(void* taken, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto first = reinterpret_cast<std::uintptr_t>(taken);
    auto range = free_.emplace(first, first + round_up(bytes, kAlignment)).first;
    const auto next = std::next(range);
    if (next != free_.end() && next->first <= range->second) {
      range->second = next->second;
      free_.erase(next);
    }
    if (range != free_.begin() && std::prev(range)->second >= range->first) {
      const auto before = std::prev(range);
      before->second = range->second;
      free_.erase(range);
      range = before;
    }
    const std::uintptr_t begin = round_up(range->first, kHugePage);
    const std::uintptr_t end = range->second / kHugePage * kHugePage;
    if (begin < end) {
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
  }

 private:
  std::size_t mapped_;
  void* memory_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> free_;  // from each first address to behind the last
};

struct Piece {
  std::shared_ptr<Slab> slab;
  void* memory;
};

// A slab of `wanted` bytes, or where these are not to be had of `least`.
std::shared_ptr<Slab> make_slab(std::size_t wanted, std::size_t least) {
  if (wanted > least) {
    try {
      return std::make_shared<Slab>(wanted);
    } catch (const Error&) {  // a limit leaves less
    }
  }
  return std::make_shared<Slab>(least);
}

Piece take(std::size_t bytes) {
  if (bytes > kMostSlabBytes / 2) {
    const auto slab = std::make_shared<Slab>(bytes);
    return {slab, slab->take(bytes)};
  }
  static std::mutex mutex;
  static std::weak_ptr<Slab> latest;  // as long as something lies in it
  const std::lock_guard lock(mutex);
  std::shared_ptr<Slab> slab = latest.lock();
  void* memory = slab == nullptr ? nullptr : slab->take(bytes);
  if (memory == nullptr) {
    const std::size_t wanted = slab == nullptr ? 0 : 2 * slab->bytes();
    latest = slab = make_slab(std::clamp(wanted, kFirstSlabBytes, kMostSlabBytes), bytes);
    memory = slab->take(bytes);
  }
  return {std::move(slab), memory};
}

}  // namespace

at::Tensor empty_weight(at::IntArrayRef sizes, at::ScalarType type) {
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  if (bytes < kSmallBytes) {
    return at::empty(sizes, at::TensorOptions(type));
  }
  Piece piece = take(bytes);
  void* memory = piece.memory;
  return at::from_blob(
      memory, sizes,
      [slab = std::move(piece.slab), bytes](void* first) { slab->give_back(first, bytes); },
      at::TensorOptions(type));
}

}  // namespace kvc
