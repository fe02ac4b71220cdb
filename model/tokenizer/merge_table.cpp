#include "model/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>

namespace kvc {

MergeTable::MergeTable(std::size_t num_merges)
    : mask_(std::bit_ceil(std::max<std::size_t>(2 * num_merges, 2)) - 1), slots_(mask_ + 1) {}

void MergeTable::add(std::int32_t left, std::int32_t right, BpeMerge merge) {
  std::size_t slot = first_slot(left, right);
  while (slots_[slot].left >= 0 && (slots_[slot].left != left || slots_[slot].right != right)) {
    slot = (slot + 1) & mask_;
  }
  slots_[slot] = {left, right, merge};
}

}  // namespace kvc
