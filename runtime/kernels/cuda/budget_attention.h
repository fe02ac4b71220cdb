// Attention over a part of a KV head's tiles, as dense attention does it: every warp walks over its own tiles with a ring of
// two in shared memory and a softmax of its own. Scaled products with what may be ranked go to memory besides. Residual
// slots, in float32, are shared by all warps of all parts.
#pragma once

#include "runtime/kernels/cuda/attention_rows.h"
#include "runtime/kernels/cuda/attention_warps.h"
#include "runtime/kernels/cuda/budget_slot.h"

namespace kvc {

template <int kHeadDim, bool kCodes>
struct BudgetAttentionShared {
  static constexpr int kStages = 2;
  static constexpr int kTileBytes = 2 * kTileRows * (kHeadDim + kPadding);  // of codes less
  static constexpr int kStageBytes = 2 * kTileBytes;                        // keys and values
  static constexpr int kWarpBytes = kStages * kStageBytes + (kCodes ? kTileBytes : 0);
  static_assert(CodeTileShape<kHeadDim>::kBytes <= kTileBytes, "either kind of tile fits");
  static constexpr int bytes(int warps, int query_tiles) {
    const int merge = merge_bytes(warps, query_tiles, kHeadDim);
    return warps * kWarpBytes > merge ? warps * kWarpBytes : merge;
  }
};

template <class T, int kHeadDim, int kQueryTiles, bool kCodes, class Thread>
class BudgetAttention {
 public:
  KVC_DEVICE BudgetAttention(const BudgetPart& part, Thread& thread)
      : p_(part.params),
        part_(part),
        tiles_(part.tiles),
        thread_(thread),
        ring_(thread.shared() + thread.warp() * Shared::kWarpBytes),
        keys_(rows_of(part.cache.keys, part.cache.key_codes)),
        values_(rows_of(part.cache.values, part.cache.value_codes)) {}

  // The part's softmaxes to the partials, and its products.
  KVC_DEVICE void run() {
    KVC_NO_UNROLL
    for (int first = 0; first < part_.heads; first += 8 * kQueryTiles) {
      attend(first);
      thread_.sync();
    }
  }

 private:
  using Shared = BudgetAttentionShared<kHeadDim, kCodes>;
  static constexpr int kRowBytes = 2 * kHeadDim;
  struct Rows {  // the KV head's first exact row, and its first row of codes
    const std::uint8_t *exact, *codes;
  };
  using Sums = WarpSums<kHeadDim, kQueryTiles>;

  KVC_DEVICE Rows rows_of(const void* exact, const std::uint8_t* codes) const {
    const std::int64_t kv_head = part_.kv_head;
    return {static_cast<const std::uint8_t*>(exact) +
                kv_head * (part_.cache.capacity - tiles_.num_skipped) * kRowBytes,
            kCodes ? codes + kv_head * tiles_.num_skipped * code_row_bytes(p_.context, kHeadDim)
                   : nullptr};
  }

  // For query heads first .. first + 8 kQueryTiles - 1.
  KVC_DEVICE void attend(int first) {
    const int warps = thread_.count() / 32, first_tile = part_.range.first + thread_.warp();
    start(first_tile, 0);
    QueryFragments<kHeadDim, kQueryTiles> query;
    load_query(first, query);
    Sums sums;
    add_slots(query, sums);
    int stage = 0;
    for (int tile = first_tile; tile < part_.range.last; tile += warps) {
      start(tile + warps, stage ^ 1);
      thread_.template wait<1>();
      thread_.sync_warp();
      const std::uint8_t* keys = ring_ + stage * Shared::kStageBytes;
      ScoreTile<kQueryTiles> scores = {};
      add_scores(thread_, numbers_of(tile, keys), query, scores);
      finish_scores(first, tile, scores);
      WeightFragments<kQueryTiles> weights;
      const RaiseFactors<kQueryTiles> raised =
          soften<T>(thread_, scores, 1.0f, 0.0f, 0, tiles_.num_rows(tile), sums.softmax, weights);
      if (kCodes) {
        thread_.sync_warp();  // the keys' numbers were read
      }
      add_values(thread_, numbers_of(tile, keys + Shared::kTileBytes), weights, raised,
                 sums.values[0]);
      thread_.sync_warp();  // the stage is free
      stage ^= 1;
    }
    finish_sums(thread_, sums.softmax);
    const int left = part_.heads - first, together = 8 * kQueryTiles;
    merge_warps(thread_, left < together ? left : together, sums.softmax, sums.values,
                [&](int head, int channel, const SoftmaxState& total, const float(&output)[1]) {
                  write_partial(p_.partials, part_.partial_row(part_.part, first + head), kHeadDim,
                                channel, total, output[0]);
                  if (part_.parts == 1) {
                    part_.set_output<T>(first + head, channel, output[0] / total.sum);
                  }
                });
  }

  KVC_DEVICE void load_query(int first, QueryFragments<kHeadDim, kQueryTiles>& query) const {
    KVC_UNROLL
    for (int n = 0; n < kQueryTiles; ++n) {
      const int head = first + 8 * n + thread_.lane() / 4;
      const bool exists = head < part_.heads;
      const auto* pairs = reinterpret_cast<const std::uint32_t*>(
          static_cast<const T*>(p_.query) + part_.query_row(exists ? head : 0) * kHeadDim);
      KVC_UNROLL
      for (int k = 0; k < kHeadDim / 16; ++k) {
        KVC_UNROLL
        for (int i = 0; i < 2; ++i) {
          query.b[k][n][i] = exists ? pairs[8 * k + 4 * i + thread_.lane() % 4] : 0;
        }
      }
    }
  }

  // Starts the copies of a tile's keys and values, if it is the part's.
  KVC_DEVICE void start(int tile, int stage) {
    if (tile < part_.range.last) {
      std::uint8_t* to = ring_ + stage * Shared::kStageBytes;
      copy_tile(tile, keys_, p_.new_key, to);
      copy_tile(tile, values_, p_.new_value, to + Shared::kTileBytes);
    }
    thread_.commit();
  }
  KVC_DEVICE void copy_tile(int tile, const Rows& rows, const void* newest, std::uint8_t* to) {
    const int count = tiles_.num_rows(tile);
    if (kCodes && tiles_.is_code(tile)) {
      const int row_bytes = code_row_bytes(p_.context, kHeadDim);
      const std::uint8_t* codes =
          rows.codes + (tile - tiles_.exact_tiles()) * kTileRows * row_bytes;
      copy_code_tile<kHeadDim>(thread_, code_rows(),
                               {codes, codes + channel_bytes(p_.context, kHeadDim), 2}, row_bytes,
                               count, to);
      return;
    }
    const std::uint8_t* first =
        tile == tiles_.newest()
            ? static_cast<const std::uint8_t*>(newest) + part_.head_row() * kRowBytes
            : rows.exact + static_cast<std::int64_t>(tile) * kTileRows * kRowBytes;
    copy_number_rows<kHeadDim>(thread_, first, kRowBytes, count,
                               reinterpret_cast<std::uint16_t*>(to));
  }
  KVC_DEVICE DeviceRows code_rows() const {
    DeviceRows rows;
    rows.element = p_.context;
    return rows;
  }

  // Where the tile's keys or values lie for products; codes are decoded behind the ring first.
  KVC_DEVICE const T* numbers_of(int tile, const std::uint8_t* at) {
    if (kCodes && tiles_.is_code(tile)) {
      auto* numbers = reinterpret_cast<T*>(ring_ + Shared::kStages * Shared::kStageBytes);
      decode_tile<T, kHeadDim>(thread_, code_rows(), at, numbers);
      thread_.sync_warp();
      return numbers;
    }
    return reinterpret_cast<const T*>(at);
  }

  // Products become scores, which go to memory where rows are ranked.
  KVC_DEVICE void finish_scores(int first, int tile, ScoreTile<kQueryTiles>& scores) const {
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = tiles_.row(tile, RowTokens::token(m, i / 2, thread_.lane()));
        KVC_UNROLL
        for (int n = 0; n < kQueryTiles; ++n) {
          const int head = first + 8 * n + 2 * (thread_.lane() % 4) + i % 2;
          float& score = scores.s[m][n][i];
          score = scaled_score(score, p_.scale, p_.softcap);
          if (row >= 0 && head < part_.heads && p_.products_stride > 0) {
            p_.products[part_.query_row(head) * p_.products_stride + row] = score;
          }
        }
      }
    }
  }

  KVC_DEVICE void add_slots(const QueryFragments<kHeadDim, kQueryTiles>& query, Sums& sums) {
    const int warps = thread_.count() / 32;
    KVC_NO_UNROLL
    for (int slot = part_.part * warps + thread_.warp(); slot < part_.fill.residual;
         slot += part_.parts * warps) {
      const std::int64_t at =
          static_cast<std::int64_t>(part_.kv_head) * part_.cache.layout.num_residual + slot;
      const float count = part_.cache.counts[at];
      if (count > 0) {
        add_slot<T>(thread_, p_,
                    {part_.cache.residual_keys + at * kHeadDim,
                     part_.cache.residual_values + at * kHeadDim, slot_bias(p_.alpha, count)},
                    query, sums);
      }
    }
  }
  const BudgetStep& p_;
  const BudgetPart& part_;
  const BudgetTiles& tiles_;
  Thread& thread_;
  std::uint8_t* ring_;
  Rows keys_, values_;
};

}  // namespace kvc
