// A latent group's tokens of a sequence as segments that attention reads: latents rebuilt to keys
// at their stored positions.
#pragma once

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/group_view.h"
#include "runtime/compression/reconstruction.h"

namespace kvc {

// A group's residual slots as keys and values of layer `index` of it, keys turned at the mean position of their members,
// rounded. Every query sees them, with alpha log(count) added to its scores. Error where there are none.
Segment slot_segment(const GroupView& group, int index, double alpha, std::int64_t num_tokens);

// Everything stored for layer `index` of the group, including the last `num_queries` tokens of
// `num_tokens`. Tensors in the decoder's dtype.
std::vector<Segment> cache_segments(const GroupView& group, int index, std::int64_t num_tokens,
                                    std::int64_t num_queries);

}  // namespace kvc
