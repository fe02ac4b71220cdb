#include "runtime/kernels/rank_space_attention.h"
#include "runtime/kernels/reference_rows.h"

namespace kvc {

void rank_space_attention_partial_reference(const DecodeAttentionParams& params,
                                            const RankSpaceSegment& segment, std::int64_t first,
                                            std::int64_t last, const AttentionPartial& partial) {
  const auto key = [&](std::int64_t row, std::int64_t kv_head) {
    return reference_key(params, segment.keys, row, kv_head);
  };
  const auto latent = [&](std::int64_t row, std::int64_t) {
    return reference_row(segment.latents, segment.width, segment.width, segment.first_latent + row,
                         segment.first_channel, segment.rank);
  };
  reference_attention(params, key, latent, first, last, partial);
}

}  // namespace kvc
