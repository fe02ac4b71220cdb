// What a block of a step under a budget has to do: a part of the tiles of one KV head of one sequence.
#pragma once

#include "runtime/kernels/cuda/attention_tiles.h"
#include "runtime/kernels/cuda/budget_places.h"

namespace kvc {

// What a KV head attends to, in tiles of 32: exact rows as they lie in memory, then codes, then the new token alone.
struct BudgetTiles {
  int num_sinks, num_skipped;  // num_skipped: codes, which rows behind the sinks would be
  int exact, codes, rows;      // that hold tokens

  KVC_HOST_DEVICE int exact_tiles() const { return (exact + kTileRows - 1) / kTileRows; }
  KVC_HOST_DEVICE int code_tiles() const { return (codes + kTileRows - 1) / kTileRows; }
  KVC_HOST_DEVICE int newest() const { return exact_tiles() + code_tiles(); }
  KVC_HOST_DEVICE int count() const { return newest() + 1; }
  KVC_HOST_DEVICE bool is_code(int tile) const { return tile >= exact_tiles() && tile < newest(); }
  // That a tile has: all 32 but of the last of its kind.
  KVC_HOST_DEVICE int num_rows(int tile) const {
    const int left = tile < exact_tiles() ? exact - tile * kTileRows
                     : tile < newest()    ? codes - (tile - exact_tiles()) * kTileRows
                                          : 1;
    return left < kTileRows ? left : kTileRows;
  }
  // What number i of the tile is: a row, `rows` for the new token, or -1.
  KVC_HOST_DEVICE int row(int tile, int i) const {
    if (i >= num_rows(tile)) {
      return -1;
    }
    if (tile >= exact_tiles()) {
      return tile < newest() ? num_sinks + (tile - exact_tiles()) * kTileRows + i : rows;
    }
    const int at = tile * kTileRows + i;
    return at < num_sinks ? at : at + num_skipped;
  }
};
KVC_HOST_DEVICE BudgetTiles budget_tiles(const BudgetLayout& layout, DeviceElement context,
                                         int rows) {
  const int skipped = is_coded(context) ? layout.num_context : 0;
  const int behind = rows - layout.num_sinks;
  const int codes = behind < 0 ? 0 : behind < skipped ? behind : skipped;
  return {layout.num_sinks, skipped, rows - codes, codes, rows};
}
// Tiles first .. last - 1 that a part has, as evenly shared as may be. Parts may be empty.
KVC_HOST_DEVICE PartRange part_tiles(const BudgetTiles& tiles, int parts, int part) {
  return split_rows(0, tiles.count(), 1, parts, part);
}

struct BudgetPart {
  const BudgetStep& params;
  const BudgetCache& cache;
  int part, parts, kv_head, sequence, heads;  // heads: query heads of the KV head
  BudgetFill fill;
  BudgetTiles tiles;
  PartRange range;

  // Among those of all sequences: the KV head; its query head `head`, and that one's partial softmax of a part.
  KVC_HOST_DEVICE std::int64_t head_row() const {
    return static_cast<std::int64_t>(sequence) * params.num_kv_heads + kv_head;
  }
  KVC_HOST_DEVICE std::int64_t query_row(int head) const {
    return static_cast<std::int64_t>(sequence) * params.num_heads + kv_head * heads + head;
  }
  KVC_HOST_DEVICE std::int64_t partial_row(int of_part, int head) const {
    return params.partials.row(sequence, of_part, params.num_heads, kv_head * heads + head);
  }
  template <class T>
  KVC_HOST_DEVICE void set_output(int head, int channel, float output) const {
    static_cast<T*>(params.output)[query_row(head) * params.head_dim + channel] = narrow<T>(output);
  }
};
template <class Thread>
KVC_DEVICE BudgetPart budget_part(const BudgetStep& params, const Thread& thread) {
  const BudgetCache& cache = params.caches[thread.block_z()];
  const BudgetFill fill = budget_fill(cache.layout, params.num_tokens[thread.block_z()]);
  const BudgetTiles tiles = budget_tiles(cache.layout, params.context, fill.rows);
  const int parts = params.partials.num_parts, part = thread.block_x();
  return {params,
          cache,
          part,
          parts,
          thread.block_y(),
          thread.block_z(),
          params.num_heads / params.num_kv_heads,
          fill,
          tiles,
          part_tiles(tiles, parts, part)};
}

}  // namespace kvc
