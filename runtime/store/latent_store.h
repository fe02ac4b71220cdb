// The KV store of one latent group of one sequence: segments of merged, unmerged and pending
// tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "runtime/store/chunk_layer.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/residual_slots.h"

namespace kvc {

// Positions of a segment's tokens, in the order of its rows. Stored per token as int32 with token
// granularity; otherwise whole blocks share a decision and runs of positions suffice.
class PositionList {
 public:
  PositionList(const StoreOptions& options, bool per_token);
  std::int64_t size() const { return size_; }
  void append(const at::Tensor& positions);            // [n] int64, ascending
  std::int64_t operator[](std::int64_t row) const;     // of positions that are not stored per token
  void erase(std::int64_t first, std::int64_t count);  // stored per token, likewise keep
  void keep(const std::vector<std::int64_t>& indices);  // ascending: only those stay
  // As RowStore::reorder; stored per token.
  void reorder(std::int64_t first, const std::vector<std::int64_t>& order) {
    rows_->reorder(first, order);
  }
  bool per_token() const { return rows_.has_value(); }
  at::Tensor tensor() const;                               // [size] int64
  std::int64_t count_before(std::int64_t position) const;  // of the list's, which ascend
  std::int64_t bytes() const { return rows_ ? rows_->bytes() : 0; }

 private:
  std::optional<RowStore> rows_;
  std::vector<std::pair<std::int64_t, std::int64_t>> runs_;  // first position, count
  std::int64_t size_ = 0;
};

// Keys and values rebuilt from the first latents of a store (runtime/compression/expansion.h).
struct Expansion {
  std::vector<KeyValueStore> merged;    // [num_layers]
  std::vector<KeyValueStore> unmerged;  // [num_layers], or empty where they are no latents

  std::int64_t bytes() const;
};

// Principal directions that a request's latents were made with, layer by layer: rows are channels of keys
// [kv_dim, key_rank] and of values [kv_dim, value_rank].
struct RequestBasis {
  std::int64_t first_row =
      0;  // of the merged latents that it made; the next basis made those after them
  std::vector<RowStore> key, value;  // [num_layers]

  std::int64_t bytes() const;
};

// What a token policy needs to know of a group's tokens. All layers and heads keep the same ones.
struct GroupColumns {
  bool positions = false;  // of every token: some leave
  bool scores = false;
  std::int64_t residual_slots =
      0;  // latents of merged tokens: means, with the mean of their positions
};
GroupColumns group_columns(const TokenPolicy& policy);

class LatentStore {
 public:
  LatentStore(const KvPlan& plan, int group, const StoreOptions& options,
              const GroupColumns& columns = {});

  GroupTokens tokens() const;
  // Of the segments, in the order merged, unmerged, pending, chunks; without the expansion.
  std::vector<std::int64_t> segment_bytes() const;

  // New tokens of layer `index` of the group, exact; every layer of the group in turn.
  void append_pending(int index, const at::Tensor& key, const at::Tensor& value);
  // The same of a model's own latents: [n, width] before their norm, and rotary keys [n, 1, width].
  void append_own(int index, const at::Tensor& latent, const at::Tensor& rotary_key);
  // What deciding and encoding need besides (group_bytes in core/kv_plan.h says when).
  void hold_latent(int index, const at::Tensor& latent);                  // [n, rank]
  void hold_weighted(const at::Tensor& latent, const at::Tensor& score);  // [n, rank], [n] float32
  void hold_key_rms(int index, const at::Tensor& rms);  // [n, num_kv_heads] float32
  // Groups whose projections are replaced store latents at once.
  void append_latent(int index, const at::Tensor& latent, const at::Tensor& positions);

  // Of the `count` oldest pending tokens that are not sinks. [count] int64
  at::Tensor next_positions(std::int64_t count) const;
  // Decides the `merge.size(0)` oldest pending tokens that are not sinks. merge: [n] bool;
  // positions: [n] int64; latents: merged latents of the tokens with merge set.
  void decide(const at::Tensor& merge, const at::Tensor& positions, const at::Tensor& latents);
  // Ahead of the others, without a token policy: `rows` of the pending tokens that are not sinks, ascending, become
  // merged ones. These are in the order of positions only after order_merged(first), of rows from `first` on.
  void merge(const std::vector<std::int64_t>& rows, const at::Tensor& positions,
             const at::Tensor& latents);
  void order_merged(std::int64_t first);

  // Under a token policy. Rows are all tokens, in the order merged, unmerged, pending.
  KeptGroupTokens kept_tokens() const;
  std::int64_t num_rows() const;
  std::int64_t column_bytes() const;  // of pending tokens' positions, scores and slots
  bool holds_positions() const { return pending_positions_.has_value(); }
  void append_positions(const at::Tensor& positions);  // [n], of new tokens; scores 0
  at::Tensor positions() const;                        // [rows] int64
  at::Tensor scores() const;                           // [rows] float32
  void set_scores(const at::Tensor& scores);
  void keep(const std::vector<std::int64_t>& rows);  // ascending: the others leave
  const PositionList& pending_positions() const { return *pending_positions_; }
  ResidualSlots& slots() { return slots_; }
  const ResidualSlots& slots() const { return slots_; }

  // Merged latents from `first_row` on are made with these; key and value [num_layers] as in RequestBasis.
  void add_basis(std::int64_t first_row, const std::vector<at::Tensor>& key,
                 const std::vector<at::Tensor>& value);
  const std::vector<RequestBasis>& bases() const { return bases_; }

  // Under selective reconstruction, of every layer.
  int num_chunk_layers() const { return static_cast<int>(chunks_.size()); }
  const ChunkLayer& chunks(int index) const { return at_layer(chunks_, index); }
  ChunkLayer& chunks(int index) { return chunks_[static_cast<std::size_t>(index)]; }

  std::optional<Expansion>& expansion() { return expansion_; }
  const std::optional<Expansion>& expansion() const { return expansion_; }
  // Has every latent its keys and values beside it?
  bool is_expanded() const;

  const PositionList& merged_positions() const { return merged_positions_; }
  const PositionList& unmerged_positions() const { return unmerged_positions_; }
  const RowStore& merged() const { return merged_; }  // rows [rank]
  bool keeps_latents() const { return !unmerged_latents_.empty(); }
  const RowStore& unmerged_latent(int index) const { return at_layer(unmerged_latents_, index); }
  // Codes first, then the exact rows of the last, incomplete block.
  // Rotary keys of merged tokens, where latents are the model's own.
  const RowStore& merged_rotary(int index) const { return at_layer(merged_rotary_, index); }
  const KeyValueStore& unmerged(int index) const { return at_layer(unmerged_, index); }
  KeyValueStore& unmerged(int index) { return unmerged_[static_cast<std::size_t>(index)]; }
  const KeyValueStore& pending(int index) const { return at_layer(pending_, index); }
  const RowStore& held_latent(int index) const { return at_layer(held_latents_, index); }
  const RowStore& held_weighted() const { return held_weighted_.front(); }
  const RowStore& held_score() const { return held_weighted_.back(); }
  bool holds_key_rms() const { return !held_rms_.empty(); }
  const RowStore& held_key_rms(int index) const { return at_layer(held_rms_, index); }

 private:
  template <typename T>
  static const T& at_layer(const std::vector<T>& layers, int index) {
    return layers[static_cast<std::size_t>(index)];
  }
  void reserve(const KvPlan& plan, int group, const StoreOptions& options);
  void keep_unmerged(const std::vector<std::int64_t>& rows);
  void move_scores(const at::Tensor& merge);
  void move_decided(std::size_t index, const at::Tensor& kept, std::int64_t count);

  StoreOptions options_;
  std::int64_t sink_tokens_ = 0;
  PositionList merged_positions_, unmerged_positions_;
  RowStore merged_;
  std::vector<KeyValueStore> unmerged_, pending_;  // [num_layers]; unmerged_: plain form
  std::vector<RowStore> unmerged_latents_;         // [num_layers]; latent form
  std::vector<RowStore> held_latents_;             // [num_layers], or empty; likewise held_rms_
  std::vector<RowStore> held_rms_;
  std::vector<RowStore> merged_rotary_;  // [num_layers], or empty
  std::vector<RowStore> held_weighted_;  // weighted latent and score, or empty
  std::vector<RequestBasis> bases_;      // of a request
  std::vector<ChunkLayer> chunks_;       // [num_layers], or empty
  std::optional<Expansion> expansion_;
  std::optional<PositionList> pending_positions_;
  std::vector<RowStore> scores_;  // of merged, unmerged and pending tokens, or empty
  ResidualSlots slots_;
};

}  // namespace kvc
