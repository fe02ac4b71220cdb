// Attention over codes with dot products of bytes.
#if defined(KVC_RUNTIME_KERNELS_VNNI_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VNNI_ATTEND_INL_H_
#undef KVC_RUNTIME_KERNELS_VNNI_ATTEND_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VNNI_ATTEND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/vnni_codes-inl.h"
#include "runtime/kernels/vnni_keys-inl.h"
#include "runtime/kernels/vnni_sums-inl.h"

#if KVC_HAS_VNNI_CODES
KVC_BEFORE_VNNI();
namespace kvc::HWY_NAMESPACE {

// Four tiles after another: codes are unpacked once, keys rebuilt tile by tile.
inline void attend_codes_vnni(const DecodeAttentionParams& params, const CodedSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial) {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  const std::int64_t last_tile = (last + kTileTokens - 1) / kTileTokens;
  VnniCodes key_codes(segment.keys.layout), of_values(segment.values.layout);
  const VnniCodes& value_codes = segment.shares_tiles() ? key_codes : of_values;
  VnniKeys keys(params);
  VnniSums sums(params.num_heads, segment.values.layout.num_coefficients());
  std::vector<float> scores(static_cast<std::size_t>(heads_per_kv * kGroupTokens));
  for (std::int64_t begin = first / kTileTokens; begin < last_tile; begin += kGroupTiles) {
    const std::int64_t tiles = std::min(kGroupTiles, last_tile - begin);
    const std::int64_t token = begin * kTileTokens;
    const TokenRange seen{std::max<std::int64_t>(0, first - token),
                          std::min(tiles * kTileTokens, last - token)};
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      key_codes.read(segment.keys.tile(begin + tile), tile);
      if (!segment.shares_tiles()) {
        of_values.read(segment.values.tile(begin + tile), tile);
      }
    }
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      const std::int64_t head = kv_head * heads_per_kv;
      const auto for_heads = [&](const auto& body) {
        for (std::int64_t i = 0; i < heads_per_kv; i += kHeadsTogether) {
          body(head + i, std::min(kHeadsTogether, heads_per_kv - i),
               scores.data() + i * kGroupTokens);
        }
      };
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::int64_t in_group = tile * kTileTokens;
        if (segment.positions != nullptr) {
          keys.set_positions(segment.positions + token + in_group);
        }
        const float* gains = key_codes.gains();
        keys.rebuild(segment.rows[kv_head], key_codes.quads(tile),
                     gains == nullptr ? nullptr : gains + in_group);
        for_heads([&](std::int64_t of, std::int64_t count, float* to) {
          keys.score(of, count, segment.turned_back(token + in_group), kGroupTokens, to + in_group);
        });
      }
      for_heads([&](std::int64_t of, std::int64_t count, float* from) {
        sums.add(of, count, value_codes, tiles, seen, params.softcap, from);
      });
    }
  }
  sums.write(partial);
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif
