// The keys and values of a batch of sequences on a GPU. Of every plain layer, pages for as many tokens as a sequence
// will have; of latent groups, those of what they hold (gpu_group.h). Coded layers, and plain ones under int8 and int4,
// hold the first tokens, the window and the incomplete block exactly and all others as codes. Tables and counts have
// addresses that hold for every step.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/gpu/gpu_group.h"
#include "runtime/gpu/gpu_kept.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/gpu/gpu_tiles.h"
#include "runtime/gpu/row_coding.h"
#include "runtime/kernels/cuda/device_rows.h"

namespace kvc {

class GpuCache {
 public:
  // `capacities`: tokens of each sequence. `page_tokens`: a multiple of 32. dtype: bfloat16 or float16, of what is
  // exact; kv_dtype: the same, or int8 or int4 of plain layers. policy: of plans of plain layers alone. drops_tokens:
  // likewise, of layers of 16-bit numbers that may keep some of a prompt; pages then come when it is read.
  GpuCache(const KvPlan& plan, at::ScalarType dtype, KvDtype kv_dtype, at::Device device,
           std::int64_t page_tokens, const std::vector<std::int64_t>& capacities,
           const GpuPolicy& policy = {}, bool drops_tokens = false);

  // Of its pages: plain_layer_bytes() of the capacity over the plan's plain layers, under integer types
  // coded_layer_bytes() of it, under a policy gpu_kept_bytes(); coded_store_bytes() of what is coded together;
  // group_bytes() of every group's reserved().
  KvBytes bytes(std::size_t sequence) const;
  std::int64_t peak_bytes() const { return page_bytes_->peak; }  // of all sequences' pages
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(capacities_.size()); }
  std::int64_t capacity(std::size_t sequence) const { return capacities_[sequence]; }
  std::int64_t page_tokens() const { return page_tokens_; }
  KvDtype kv_dtype() const { return kv_dtype_; }  // of plain layers
  // Of latents and what is exact.
  KvDtype exact_dtype() const {
    return dtype_ == at::kBFloat16 ? KvDtype::kBFloat16 : KvDtype::kFloat16;
  }
  const KvPlan& plan() const { return plan_; }

  // A plain or coded layer's rows `first` .. `first` + `count` - 1 of one sequence, [count, num_kv_heads, head_dim]: to
  // be read. Keys are post-RoPE.
  at::Tensor keys(int layer, std::size_t sequence, std::int64_t first, std::int64_t count) const;
  at::Tensor values(int layer, std::size_t sequence, std::int64_t first, std::int64_t count) const;
  // The same rows become these, from `first` on.
  void write(int layer, std::size_t sequence, std::int64_t first, const at::Tensor& key,
             const at::Tensor& value);
  // Of a cache that drops tokens: what a layer keeps of a prompt of `num_tokens` are its last rows, so that a generated
  // token's row is its position; there are pages from them on. Before `first_row` there is nothing.
  void write_last(int layer, std::size_t sequence, std::int64_t num_tokens, const at::Tensor& key,
                  const at::Tensor& value);
  bool drops_tokens() const { return first_rows_.defined(); }
  std::int64_t first_row(int layer, std::size_t sequence) const {
    return drops_tokens() ? host_first_rows_[index(layer)][sequence] : 0;
  }
  std::int32_t* first_rows(int layer) const;  // on the device, [num_sequences]
  // Sequence `to` begins with the first `count` tokens of `from`, all that it has.
  void copy(std::size_t from, std::size_t to, std::int64_t count);

  // All sequences' rows of a plain layer, or exact ones of a coded layer, for kernels.
  DeviceRows key_rows(int layer) const { return layers_[index(layer)].key.table(); }
  DeviceRows value_rows(int layer) const { return layers_[index(layer)].value.table(); }

  // Plain layers under integer types, or coded ones. All have as many codes; counts: tokens that are codes, on the device,
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
  const GpuRows& stored_key_codes(int layer) const { return *layers_[index(layer)].key_codes; }
  const GpuRows& stored_value_codes(int layer) const { return *layers_[index(layer)].value_codes; }
  const at::Tensor& num_codes() const { return num_codes_; }
  std::int64_t num_codes(std::size_t sequence) const { return codes_[sequence]; }
  std::int64_t num_exact(std::size_t sequence) const { return exact_[sequence]; }
  // A sequence's integers of a plain layer, with pages for all that its capacity has.
  CodeRows reserve_codes(int layer, std::size_t sequence);
  // Of layers that are coded together, in the order of coded_layers().
  std::vector<GpuTiles>& tiles() { return tiles_; }
  const std::vector<GpuTiles>& tiles() const { return tiles_; }
  const GpuTiles& tiles_of(int layer) const;
  // Of a layer's exact tokens, `count` behind the sinks leave; what is left has pages for a block.
  void drop_exact(int layer, std::size_t sequence, std::int64_t count);
  void count_codes(std::size_t sequence, std::int64_t count);  // of all layers

  // All of it under a token policy, else null.
  GpuKept* kept() const { return kept_.get(); }

  GpuGroup& group(int group) { return groups_[static_cast<std::size_t>(group)]; }
  const GpuGroup& group(int group) const { return groups_[static_cast<std::size_t>(group)]; }
  // The sequence may have so many tokens, where it may have fewer. Programs made before hold addresses that are no more. Not
  // under a policy.
  void grow(std::size_t sequence, std::int64_t capacity);
  // Bases of a request that any sequence has, of which a program knows those that there were when it was made.
  std::int64_t most_bases() const;
  // Before a prompt of so many tokens, behind what the sequence has, is read.
  void begin_prompt(std::size_t sequence, std::int64_t num_tokens);
  // Exact tokens with the one that the next step feeds, and its row. On the device, int32 [num_sequences]; steps move
  // them on. Pending: of the groups that decide, each the same; exact: of layers with codes.
  const at::Tensor& pending_rows() const { return pending_.rows; }
  const at::Tensor& pending_slots() const { return pending_.slots; }
  const at::Tensor& exact_rows() const { return exact_part_.rows; }
  const at::Tensor& exact_slots() const { return exact_part_.slots; }
  // A step has appended a token to every sequence.
  void add_token();
  // After some were decided, or became codes; `fed`: 1 where the next step's token is counted above, else 0.
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
  // Are its rows those that are not codes yet, or all?
  bool has_exact_part(const Layer& layer) const { return layer.is_coded || has_integers(); }
  void add_layer(KvSource source, const GpuPages& pages);
  void reserve_plain(Layer& layer, std::size_t sequence);
  at::Tensor heads(const at::Tensor& rows) const {
    return rows.view({rows.size(0), plan_.num_kv_heads, plan_.head_dim});
  }

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
// Of a plain layer under an integer type, whose sequence may have `capacity` tokens: pages of all codes that there can
// be, and of the exact tokens with a block that becomes codes once it is whole.
std::int64_t coded_layer_bytes(const KvPlan& plan, std::int64_t capacity, KvDtype dtype,
                               std::int64_t page_tokens);
// The same bytes of layers that are coded together.
std::int64_t coded_store_bytes(const KvPlan& plan, const CodedLayers& layers, std::int64_t capacity,
                               std::int64_t page_tokens);

// The same type for kernels; Error for another than bfloat16 and float16.
DeviceElement device_element(at::ScalarType dtype);

}  // namespace kvc
