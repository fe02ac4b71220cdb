#include "runtime/kernels/coded_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/coded_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "runtime/kernels/coded_softmax-inl.h"
#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/rebuild_keys-inl.h"
#include "runtime/kernels/unpack_tile-inl.h"
#include "runtime/kernels/vnni_attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend_codes(const DecodeAttentionParams& params, const CodedSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  coded_attention_partial_reference(params, segment, first, last, partial);
}

#else

// A tile after the other: its codes are unpacked once, keys rebuilt per KV head.
void attend_codes(const DecodeAttentionParams& params, const CodedSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  if (segment.rows[0].rotated()) {
    return coded_attention_partial_reference(params, segment, first, last, partial);
  }
#if KVC_HAS_VNNI_CODES
  if (has_avx512_vnni()) {
    return attend_codes_vnni(params, segment, first, last, partial);
  }
#endif
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  TileCodes key_codes(segment.keys.layout), of_values(segment.values.layout);
  const TileCodes& value_codes = segment.shares_tiles() ? key_codes : of_values;
  TileKeys keys(params);
  CodeSums sums(params.num_heads, segment.values.layout.num_coefficients());
  float scores[kHeadsTogether * kTileTokens];
  for (std::int64_t tile = first / kTileTokens; tile * kTileTokens < last; ++tile) {
    const std::int64_t token = tile * kTileTokens;
    const TokenRange seen{std::max<std::int64_t>(0, first - token),
                          std::min(kTileTokens, last - token)};
    key_codes.read(segment.keys.tile(tile));
    if (!segment.shares_tiles()) {
      of_values.read(segment.values.tile(tile));
    }
    if (segment.positions != nullptr) {
      keys.set_positions(segment.positions + token);
    }
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      keys.rebuild(segment.rows[kv_head], key_codes);
      for (std::int64_t i = 0; i < heads_per_kv; i += kHeadsTogether) {
        const std::int64_t head = kv_head * heads_per_kv + i;
        const std::int64_t count = std::min(kHeadsTogether, heads_per_kv - i);
        keys.score(head, count, segment.turned_back(token), scores);
        sums.add(head, count, value_codes, seen, params.softcap, scores);
      }
    }
  }
  sums.write(partial);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(attend_codes);

void coded_attention_partial(const DecodeAttentionParams& params, const CodedSegment& segment,
                             std::int64_t first, std::int64_t last,
                             const AttentionPartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend_codes)(params, segment, first, last, partial);
}

}  // namespace kvc
#endif  // HWY_ONCE
