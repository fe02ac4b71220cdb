// The source of a layer's keys and values (core/kv_sources.h) for attention: how a pass stores new
// tokens, and how queries read stored ones. One file per source.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/attention/rebuild_counts.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

enum class Pass { kPrefill, kExtend };

struct GroupAttended;  // kept_group.h

// Inputs of a forward pass, for all sources.
struct SourceContext {
  const Decoder& decoder;
  const KvPlan& plan;
  const KvFactors& factors;
  Pass pass;
  const TokenPolicy& policy;
  RebuildCounts* rebuilt = nullptr;  // counts of selective reconstruction; null: not counted
};

// Keys and values of tokens, [n, num_kv_heads, head_dim], with bias; keys after their norm, pre-RoPE.
struct NewKeyValue {
  at::Tensor key, value;
};

// New tokens of one sequence: tokens first .. first + count - 1 of the batch.
struct NewTokens {
  std::int64_t first = 0, count = 0;
  at::Tensor positions;  // [count]
  at::Tensor raw_key;    // [count, num_kv_heads, head_dim] pre-RoPE
  at::Tensor key;        // likewise, post-RoPE
  at::Tensor value;      // [count, num_kv_heads, head_dim]
};

// The source of one layer, or of a group's adjacent layers, for one forward pass: layers in turn, all
// over the same tokens.
class LayerSource {
 public:
  LayerSource(const SourceContext& context, int first_layer, int num_layers)
      : context_(context), layers_(static_cast<std::size_t>(num_layers)) {
    std::iota(layers_.begin(), layers_.end(), first_layer);
  }
  LayerSource(const LayerSource&) = delete;
  LayerSource& operator=(const LayerSource&) = delete;
  virtual ~LayerSource() = default;

  bool covers(int layer) const { return layer >= layers_.front() && layer <= layers_.back(); }
  // Does the layer compute its own keys and values? Otherwise `attend` handles prompts too, over what other
  // layers have stored; of the functions below only it and `attended` are called, without keys and values.
  virtual bool has_own_keys() const { return true; }
  // Keys and values of all tokens of the batch for a prompt's exact attention: their own, unless the
  // source replaces them.
  virtual NewKeyValue keys_and_values(int layer, const AttentionInput& input);
  // Stores one sequence's tokens in its cache.
  virtual void store(int layer, const NewTokens& tokens, KvCache& cache) = 0;
  // Does a new sequence's prompt attend to exact keys and values? Otherwise to stored ones.
  virtual bool reads_prompts_exactly() const { return true; }
  // Called after attention of these tokens, query [count, num_heads, head_dim] post-RoPE. For a prompt, `end` is
  // the sequence's length after all of it was read; 0 for other tokens.
  virtual void attended(int /*layer*/, const NewTokens& /*tokens*/, const at::Tensor& /*query*/,
                        std::int64_t /*end*/, KvCache& /*cache*/) {}
  // All of this for generated tokens: stores them, attends to everything stored, and calls `attended`.
  virtual at::Tensor extend(int layer, const NewTokens& tokens, const at::Tensor& query,
                            KvCache& cache);
  // Queries of one sequence's last tokens, which are stored, over all its stored tokens up to the last
  // position (a prompt that other layers have read may have more). query [T, num_heads, head_dim]
  // post-RoPE, positions [T]. [T, num_heads * head_dim] in the query's dtype.
  virtual at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                            const KvCache& cache) const = 0;

 protected:
  const SourceContext& context() const { return context_; }
  const std::vector<int>& layers() const { return layers_; }
  int index_of(int layer) const { return layer - layers_.front(); }
  // Arguments of attended(), for one of the `sharing` layers that keep the same tokens.
  GroupAttended group_attended(const std::vector<int>& sharing, int layer, const NewTokens& tokens,
                               const at::Tensor& query, std::int64_t end) const;

 private:
  SourceContext context_;
  std::vector<int> layers_;
};

// The source that covers `layer` in the plan.
std::unique_ptr<LayerSource> make_layer_source(const SourceContext& context, int layer);

std::unique_ptr<LayerSource> plain_source(const SourceContext& context, int layer);
// Plain layers under a token policy that drops tokens.
std::unique_ptr<LayerSource> kept_source(const SourceContext& context, int layer);
// Plain layers whose keys lose channels (ThinK).
std::unique_ptr<LayerSource> pruned_source(const SourceContext& context, int layer);
std::unique_ptr<LayerSource> latent_source(const SourceContext& context, int layer);
std::unique_ptr<LayerSource> coded_source(const SourceContext& context, int layer);
std::unique_ptr<LayerSource> fused_source(const SourceContext& context, int layer);
std::unique_ptr<LayerSource> paired_source(const SourceContext& context, int layer);

}  // namespace kvc
