// Tokens of a latent group that leave a cache and merge into residual slots (ZeroMerge).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/compression/group_view.h"

namespace kvc {

// Rows, ascending by position, become part of the group's slots: of the one whose rebuilt keys, before RoPE and summed
// over the group's layers, are most like the token's, or the first free one; with `in_runs` as many neighbours each. A
// slot's latent and its position are its members' means. Latents are those of merged tokens as they are stored, of
// others as merging would make them.
void merge_into_slots(const GroupView& group, const std::vector<std::int64_t>& rows, bool in_runs,
                      ResidualSlots& slots);

}  // namespace kvc
