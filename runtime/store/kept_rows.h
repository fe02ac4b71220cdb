// Keys and values of one layer of one sequence under a token policy.
//
// A row holds one token of every KV head, not necessarily the same one: heads keep as many tokens each, but may
// keep different ones. Until the first token leaves, rows are those of a plain layer (codes of keys before RoPE).
// From then on keys are post-RoPE, codes too, so that attention needs no positions; those are kept to tell tokens
// apart. Merged tokens lie apart, in float32 slots with their counts. For layers that keep the same tokens
// (core/token_policy.h), which lie in the same rows, the first has the positions and the scores of all.
//
//   rows.append(key, value, positions);   // new tokens, at the end; any number at a time
//   rows.keep(indices);                   // the rows to stay, in this order: [n], or [n, num_kv_heads]
//
// runtime/attention/kept_attention.h attends to all rows and slots. A copy shares its blocks until one of the
// two writes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/residual_slots.h"
#include "runtime/store/row_store.h"

namespace kvc {

// Data of rows beside keys and values.
struct KeptColumns {
  bool per_head = true;  // positions and scores per KV head; else all heads keep the same tokens
  bool follows = false;  // positions and scores are another layer's, with the same tokens
  bool scores = false;
  bool changes = false;  // rows change one by one: codes have scales per row
  std::int64_t residual_slots = 0;
};
KeptColumns kept_columns(const TokenPolicy& policy);
// For a layer that keeps the same tokens as others; the first of them has the positions and scores.
KeptColumns kept_columns(const TokenPolicy& policy, const SharingLayers& sharing, int layer);

// The whole content of a layer, as tensors.
struct KeptContent {
  at::Tensor key, value;  // [n, num_kv_heads, head_dim] float32; to be assigned, of any type
  at::Tensor positions;   // [n, heads] int64, heads num_kv_heads or 1; undefined if rows follow
  at::Tensor scores;      // [n, heads] float32, or undefined
};

class KeptRows {
 public:
  KeptRows(const KvPlan& plan, const StoreOptions& options, const KeptColumns& columns);

  std::int64_t num_rows() const { return store_.num_exact() + store_.num_codes(); }
  std::int64_t num_kv_heads() const { return num_kv_heads_; }
  std::int64_t head_dim() const { return head_dim_; }
  std::int64_t rows_before_codes() const { return rows_before_codes_; }
  std::int64_t bytes() const;
  bool has_left() const { return has_left_; }  // a token has left: rows are not the whole text
  KeptTokens tokens() const;                   // for kept_layer_bytes

  // key, value [n, num_kv_heads, head_dim] post-RoPE; positions [n]; scores 0.
  void append(const at::Tensor& key, const at::Tensor& value, const at::Tensor& positions);
  // indices int64, [n] or [n, num_kv_heads]: row i becomes row indices[i][h] of head h. `turn` as
  // in content.
  using TurnKeys = std::function<at::Tensor(const at::Tensor& key, const at::Tensor& positions)>;
  void keep(const at::Tensor& indices, const TurnKeys& turn = {});
  // `turn` rotates keys [n, num_kv_heads, head_dim] at positions [n]: required if codes may be before RoPE.
  KeptContent content(const TurnKeys& turn = {}) const;
  // Its keys, or its values, alone: of the store's type where no rows are codes.
  at::Tensor keys(const TurnKeys& turn = {}) const;
  at::Tensor values() const;
  void assign(const KeptContent& content);
  // Under an integer type: of exact rows, `count` behind the first `first` become codes, whole blocks.
  // `first` is the same at every call. `turn_back` undoes what `turn` does.
  void quantise(std::int64_t first, std::int64_t count, const TurnKeys& turn_back);

  const KeyValueStore& store() const { return store_; }
  ResidualSlots& residual() { return residual_; }
  const ResidualSlots& residual() const { return residual_; }
  // Not for rows that follow another layer's.
  at::Tensor positions() const { return positions_->rows(at::kInt).to(at::kLong); }
  at::Tensor scores() const { return scores_->rows(at::kFloat); }
  bool per_head() const { return per_head_; }

  // Under an integer type, rows first .. first + count - 1 become codes that can change.
  void code(std::int64_t first, std::int64_t count);

  // In place, if codes can change. Positions if heads keep the same tokens: those of head 0.
  std::int32_t position(std::int64_t row, std::int64_t kv_head) const;
  bool has_scores() const { return scores_.has_value(); }
  float score(std::int64_t row, std::int64_t kv_head) const;
  void set_scores(const at::Tensor& scores);  // [num_rows, heads]
  // Writable blocks of page() rows [heads].
  std::vector<float*> score_blocks();
  std::int64_t page() const { return store_.key.block_rows(); }
  // The row with the smallest score among rows first .. last - 1 and `least`; ties: the earliest position.
  std::int64_t least_row(std::int64_t first, std::int64_t last, std::int64_t least,
                         std::int64_t kv_head) const;
  // key, value [head_dim] float32
  void read(std::int64_t row, std::int64_t kv_head, float* key, float* value) const;
  void write(std::int64_t row, std::int64_t kv_head, const float* key, const float* value);
  void copy(std::int64_t from, std::int64_t to, std::int64_t kv_head);          // exact to exact
  void copy_columns(std::int64_t from, std::int64_t to, std::int64_t kv_head);  // position, score
  bool is_code(std::int64_t row) const {
    return row >= rows_before_codes_ && row < rows_before_codes_ + store_.num_codes();
  }
  void truncate(std::int64_t rows);
  void reserve(std::int64_t rows);

 private:
  // Exact rows around the codes. float32
  at::Tensor in_order(const RowStore& exact, const at::Tensor& codes) const;
  std::int64_t heads() const { return per_head_ ? num_kv_heads_ : 1; }
  // Index of a row in its store.
  std::int64_t place(std::int64_t row) const {
    return is_code(row)               ? row - rows_before_codes_
           : row < rows_before_codes_ ? row
                                      : row - store_.num_codes();
  }

  std::int64_t num_kv_heads_, head_dim_;
  bool per_head_, changes_, has_left_ = false;
  std::int64_t reserved_rows_ = 0, rows_before_codes_ = 0;
  KeyValueStore store_;
  std::optional<RowStore> positions_, scores_;
  ResidualSlots residual_;
};

}  // namespace kvc
