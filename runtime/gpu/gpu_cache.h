// The keys and values of a batch of sequences on a GPU. Plain layers have pages for all tokens that a sequence will
// have; latent groups for what they store (gpu_group.h). Coded layers, and plain ones under int8 and int4, store the
// first tokens, the window and the incomplete block exactly and all others as codes. Addresses of tables and counts are
// valid for every step.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "runtime/gpu/gpu_group.h"
#include "runtime/gpu/gpu_kept.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/gpu/gpu_tiles.h"
#include "runtime/gpu/row_coding.h"
#include "runtime/kernels/cuda/device_rows.h"

namespace kvc {

class GpuCache {
 public:
  // `capacities`: tokens of each sequence. `page_tokens`: a multiple of 32. dtype: bfloat16 or float16, of exact
  // tokens; kv_dtype: the same, or int8 or int4 for plain layers. policy: for plans of plain layers only.
  // drops_tokens: the same, for 16-bit layers that may keep a part of a prompt; their pages are allocated when it is
  // read.
  GpuCache(const KvPlan& plan, at::ScalarType dtype, KvDtype kv_dtype, at::Device device,
           std::int64_t page_tokens, const std::vector<std::int64_t>& capacities,
           const GpuPolicy& policy = {}, bool drops_tokens = false);

  // Bytes of its pages: plain_layer_bytes() of the capacity over the plan's plain layers, under integer types
  // coded_layer_bytes(), under a policy gpu_kept_bytes(); coded_store_bytes() of layers that are coded
  // together; group_bytes() of every group's reserved().
  KvBytes bytes(std::size_t sequence) const;
  std::int64_t peak_bytes() const { return page_bytes_->peak; }  // of all sequences' pages
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(capacities_.size()); }
  std::int64_t capacity(std::size_t sequence) const { return capacities_[sequence]; }
  std::int64_t page_tokens() const { return page_tokens_; }
  KvDtype kv_dtype() const { return kv_dtype_; }  // of plain layers
  // Dtype of latents and exact tokens.
  KvDtype exact_dtype() const {
    return dtype_ == at::kBFloat16 ? KvDtype::kBFloat16 : KvDtype::kFloat16;
  }
  const KvPlan& plan() const { return plan_; }

  // A plain or coded layer's rows `first` .. `first` + `count` - 1 of one sequence, [count, num_kv_heads, head_dim],
  // for reading. Keys are post-RoPE.
  at::Tensor keys(int layer, std::size_t sequence, std::int64_t first, std::int64_t count) const;
  at::Tensor values(int layer, std::size_t sequence, std::int64_t first, std::int64_t count) const;
  // Overwrites these rows from `first` on.
  void write(int layer, std::size_t sequence, std::int64_t first, const at::Tensor& key,
             const at::Tensor& value);
  // For a cache that drops tokens: a layer stores what it keeps of a prompt of `num_tokens` in its last rows, so a
  // generated token's row is its position. Pages begin there; rows before `first_row` do not exist.
  void write_last(int layer, std::size_t sequence, std::int64_t num_tokens, const at::Tensor& key,
                  const at::Tensor& value);
  bool drops_tokens() const { return first_rows_.defined(); }
  std::int64_t first_row(int layer, std::size_t sequence) const {
    return drops_tokens() ? host_first_rows_[index(layer)][sequence] : 0;
  }
  std::int32_t* first_rows(int layer) const;  // on the device, [num_sequences]
  // Copies the `count` tokens of `from`, which are all it has, to the beginning of `to`.
  void copy(std::size_t from, std::size_t to, std::int64_t count);

  // All sequences' rows of a plain layer, or exact ones of a coded layer, for kernels.
  DeviceRows key_rows(int layer) const { return layers_[index(layer)].key.table(); }
  DeviceRows value_rows(int layer) const { return layers_[index(layer)].value.table(); }

  // Plain layers under integer types, or coded ones. All have equally many codes; counts: coded tokens, on the device,
  // int32 [num_sequences].
  bool has_codes() const {
    return std::any_of(layers_.begin(), layers_.end(),
                       [this](const Layer& layer) { return has_exact_part(layer); });
  }
  bool has_codes(int layer) const {
    return kept_ == nullptr && row_index_[static_cast<std::size_t>(layer)] >= 0 &&
           has_exact_part(layers_[index(layer)]);
  }
  bool has_integers() const { return is_integer(kv_dtype_); }
  DeviceRows key_codes(int layer) const { return layers_[index(layer)].key_codes->table(); }
  DeviceRows value_codes(int layer) const { return layers_[index(layer)].value_codes->table(); }
  const at::Tensor& num_codes() const { return num_codes_; }
  std::int64_t num_codes(std::size_t sequence) const { return codes_[sequence]; }
  std::int64_t num_codes(int layer, std::size_t sequence) const {
    return has_codes(layer) ? codes_[sequence] : 0;
  }
  std::int64_t num_exact(std::size_t sequence) const { return exact_[sequence]; }
  // A sequence's codes of a plain layer; reserved, with pages for its whole capacity.
  CodeRows codes(int layer, std::size_t sequence) const;
  CodeRows reserve_codes(int layer, std::size_t sequence);
  // One per set of layers that are coded together, in the order of coded_layers().
  std::vector<GpuTiles>& tiles() { return tiles_; }
  const std::vector<GpuTiles>& tiles() const { return tiles_; }
  const GpuTiles& tiles_of(int layer) const;
  // Drops `count` of a layer's exact tokens behind the sinks; the rest has pages for one more
  // block.
  void drop_exact(int layer, std::size_t sequence, std::int64_t count);
  void count_codes(std::size_t sequence, std::int64_t count);  // of all layers

  // The whole cache under a token policy, else null.
  GpuKept* kept() const { return kept_.get(); }

  GpuGroup& group(int group) { return groups_[static_cast<std::size_t>(group)]; }
  const GpuGroup& group(int group) const { return groups_[static_cast<std::size_t>(group)]; }
  // Raises the sequence's capacity to that many tokens. Addresses in earlier programs become invalid. Not under a
  // policy.
  void grow(std::size_t sequence, std::int64_t capacity);
  // The largest number of request bases of any sequence; a program knows those that existed when it was built.
  std::int64_t most_bases() const;
  // Call before reading a prompt of that many further tokens.
  void begin_prompt(std::size_t sequence, std::int64_t num_tokens);
  // Number of exact tokens including the one that the next step feeds, and its row. On the device, int32
  // [num_sequences]; steps advance them. Pending: for groups that decide, equal in all; exact: for layers with codes.
  const at::Tensor& pending_rows() const { return pending_.rows; }
  const at::Tensor& pending_slots() const { return pending_.slots; }
  const at::Tensor& exact_rows() const { return exact_part_.rows; }
  const at::Tensor& exact_slots() const { return exact_part_.slots; }
  // Call after a step has appended a token to every sequence.
  void add_token();
  // Call after tokens were decided or coded; `fed`: 1 if the counts above include the next step's token,
  // else 0.
  void set_pending(std::size_t sequence, std::int64_t pending, std::int64_t fed) {
    pending_.set(sequence, pending + fed);
  }
  void set_exact(std::size_t sequence, std::int64_t fed) {
    exact_part_.set(sequence, exact_[sequence] + fed);
  }

 private:
  struct Layer {
    GpuRows key, value;
    bool is_coded = false;
    std::optional<GpuRows> key_codes{}, value_codes{};
  };
  struct StepRows {
    explicit StepRows(const at::TensorOptions& options, std::int64_t num_sequences)
        : rows(at::zeros({num_sequences}, options)), slots(at::zeros_like(rows)) {}
    void set(std::size_t sequence, std::int64_t count);

    at::Tensor rows, slots;
  };
  std::size_t index(int layer) const {
    return static_cast<std::size_t>(row_index_[static_cast<std::size_t>(layer)]);
  }
  // True if a layer stores only exact tokens as rows, rather than all.
  bool has_exact_part(const Layer& layer) const { return layer.is_coded || has_integers(); }
  void add_layer(KvSource source, const GpuPages& pages);
  void reserve_plain(Layer& layer, std::size_t sequence);

  KvPlan plan_;
  at::ScalarType dtype_;
  KvDtype kv_dtype_;
  std::int64_t page_tokens_;
  std::vector<std::int64_t> capacities_;
  std::shared_ptr<GpuPageBytes> page_bytes_;
  std::vector<int> row_index_;  // [num_layers] into layers_, -1 of those without rows
  std::vector<Layer> layers_;   // plain and coded
  std::vector<GpuTiles> tiles_;
  std::vector<GpuGroup> groups_;
  std::unique_ptr<GpuKept> kept_;
  std::vector<std::int64_t> codes_, exact_;  // [num_sequences] tokens of layers with codes
  at::Tensor num_codes_;
  at::Tensor first_rows_;  // [num_layers, num_sequences] int32 on the device, or undefined
  std::vector<std::vector<std::int64_t>> host_first_rows_;  // likewise
  StepRows pending_, exact_part_;
};

// Exact tokens that a layer with codes has room for while it generates.
std::int64_t exact_capacity(const KvPlan& plan, std::int64_t capacity);
// Bytes of a plain layer under an integer type, for `capacity` tokens: pages of all possible codes, and of the exact
// tokens with one block that is coded when complete.
std::int64_t coded_layer_bytes(const KvPlan& plan, std::int64_t capacity, KvDtype dtype,
                               std::int64_t page_tokens);
// The same for layers that are coded together.
std::int64_t coded_store_bytes(const KvPlan& plan, const CodedLayers& layers, std::int64_t capacity,
                               std::int64_t page_tokens);

}  // namespace kvc
