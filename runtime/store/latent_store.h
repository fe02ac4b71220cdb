// The KV store of one latent group of one sequence: segments of merged, unmerged and pending
// tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "core/token_policy.h"
#include "runtime/store/chunk_layer.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/residual_slots.h"

namespace kvc {

// Positions of a segment's tokens, in the order of its rows. Stored per token as int32 with token
// granularity; otherwise whole blocks share a decision, so runs of positions suffice.
class PositionList {
 public:
  PositionList(const StoreOptions& options, bool per_token);
  std::int64_t size() const { return size_; }
  void append(const at::Tensor& positions);            // [n] int64, ascending
  std::int64_t operator[](std::int64_t row) const;     // of positions that are not stored per token
  void erase(std::int64_t first, std::int64_t count);  // stored per token, likewise keep
  void keep(const std::vector<std::int64_t>& indices);  // ascending: only those stay
  void truncate(std::int64_t count);  // of positions that are not stored per token
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
  std::vector<KeyValueStore> unmerged;  // [num_layers], or empty if they are not latents

  std::int64_t bytes() const;
};

// Principal directions of a request's latents, layer by layer: rows are channels of keys [kv_dim,
// key_rank] and of values [kv_dim, value_rank].
struct RequestBasis {
  std::int64_t first_row =
      0;  // rows of merged latents in this basis; the next basis has those after them
  std::vector<RowStore> key, value;  // [num_layers]

  std::int64_t bytes() const;
};

// Data of a group's tokens that a token policy requires. All layers and heads keep the same tokens.
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
  // In the order merged, unmerged, pending, chunks; without the expansion.
  std::vector<std::int64_t> segment_bytes() const;

  // Appends new exact tokens of layer `index` of the group; call for every layer in turn.
  void append_pending(int index, const at::Tensor& key, const at::Tensor& value);
  // The same for a model's own latents: [n, width] before their norm, and rotary keys [n, 1,
  // width].
  void append_own(int index, const at::Tensor& latent, const at::Tensor& rotary_key);
  // What deciding and encoding need besides (group_bytes in core/kv_plan.h says when): of every layer latents [n, rank] or
  // what the norm divided its keys by [n, num_kv_heads]; or of the group a weighted latent [n, rank] and its score [n].
  void hold(int index, const at::Tensor& rows);
  // Groups whose projections are replaced store latents at once.
  void append_latent(int index, const at::Tensor& latent, const at::Tensor& positions);
  // Only the first `count` tokens stay. For such groups without a token policy.
  void truncate(std::int64_t count);

  // Positions of the `count` oldest pending tokens that are not sinks. [count] int64
  at::Tensor next_positions(std::int64_t count) const;
  // Decides the `merge.size(0)` oldest pending tokens that are not sinks. merge: [n] bool;
  // positions: [n] int64; latents: merged latents of the tokens with merge set.
  void decide(const at::Tensor& merge, const at::Tensor& positions, const at::Tensor& latents);
  // Merges `rows` (ascending) of the pending tokens that are not sinks, ahead of the others; without a token
  // policy. order_merged(first) then sorts merged rows from `first` on by position.
  void merge(const std::vector<std::int64_t>& rows, const at::Tensor& positions,
             const at::Tensor& latents);
  void order_merged(std::int64_t first);

  // For token policies. Rows are all tokens, in the order merged, unmerged, pending.
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

  // Basis of merged latents from `first_row` on; key and value [num_layers] as in RequestBasis.
  void add_basis(std::int64_t first_row, const std::vector<at::Tensor>& key,
                 const std::vector<at::Tensor>& value);
  const std::vector<RequestBasis>& bases() const { return bases_; }

  // One per layer, under selective reconstruction.
  int num_chunk_layers() const { return static_cast<int>(chunks_.size()); }
  const ChunkLayer& chunks(int index) const { return at_layer(chunks_, index); }
  ChunkLayer& chunks(int index) { return chunks_[static_cast<std::size_t>(index)]; }

  std::optional<Expansion>& expansion() { return expansion_; }
  const std::optional<Expansion>& expansion() const { return expansion_; }

  const PositionList& merged_positions() const { return merged_positions_; }
  const PositionList& unmerged_positions() const { return unmerged_positions_; }
  const RowStore& merged() const { return merged_; }  // rows [rank]
  bool keeps_latents() const { return !unmerged_latents_.empty(); }
  const RowStore& unmerged_latent(int index) const { return at_layer(unmerged_latents_, index); }
  // Codes first, then the exact rows of the last, incomplete block. Rotary keys of merged tokens,
  // if latents are the model's own.
  const RowStore& merged_rotary(int index) const { return at_layer(merged_rotary_, index); }
  const KeyValueStore& unmerged(int index) const { return at_layer(unmerged_, index); }
  KeyValueStore& unmerged(int index) { return unmerged_[static_cast<std::size_t>(index)]; }
  const KeyValueStore& pending(int index) const { return at_layer(pending_, index); }
  const RowStore& held(int index) const { return at_layer(held_, index); }
  bool holds_key_rms() const { return holds_key_rms_; }

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
  std::vector<RowStore> held_;
  bool holds_key_rms_ = false;
  std::vector<RowStore> merged_rotary_;  // [num_layers], or empty
  std::vector<RequestBasis> bases_;      // of a request
  std::vector<ChunkLayer> chunks_;       // [num_layers], or empty
  std::optional<Expansion> expansion_;
  std::optional<PositionList> pending_positions_;
  std::vector<RowStore> scores_;  // of merged, unmerged and pending tokens, or empty
  ResidualSlots slots_;
};

}  // namespace kvc
