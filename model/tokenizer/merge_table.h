// Which pairs of tokens merge, how early, and into what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc {

struct BpeMerge {
  std::int32_t rank = 0;  // the lowest merges first
  std::int32_t merged = 0;
};

// A hash table with open addressing: looking pairs up is what tokenizing consists of.
class MergeTable {
 public:
  explicit MergeTable(std::size_t num_merges = 0);
  // A later merge of the same pair replaces the earlier one. At most num_merges calls.
  void add(std::int32_t left, std::int32_t right, BpeMerge merge);

  const BpeMerge* find(std::int32_t left, std::int32_t right) const {  // nullptr: they do not merge
    for (std::size_t slot = first_slot(left, right);; slot = (slot + 1) & mask_) {
      const Slot& candidate = slots_[slot];
      if (candidate.left == left && candidate.right == right) return &candidate.merge;
      if (candidate.left < 0) return nullptr;
    }
  }

 private:
  struct Slot {
    std::int32_t left = -1, right = -1;
    BpeMerge merge;
  };
  std::size_t first_slot(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = (static_cast<std::uint64_t>(left) << 32) ^
                               static_cast<std::uint64_t>(static_cast<std::uint32_t>(right));
    return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15u) >> 32) & mask_;
  }

  std::size_t mask_;
  std::vector<Slot> slots_;  // at most half are taken
};

}  // namespace kvc
