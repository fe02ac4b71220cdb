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
#include "runtime/attention/prompt_attention.h"
#include "runtime/attention/rebuild_counts.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/compression/prompt_compression.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Prompts, and generated tokens; kContinue reads tokens as if they were generated, but layer by layer as a prompt.
enum class Pass { kPrefill, kExtend, kContinue };

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

// What a source makes of tokens: keys and values, [n, num_kv_heads, head_dim], with bias; keys after their norm,
// pre-RoPE. And what the store of a latent group holds besides, where it does.
struct NewKeyValue {
  at::Tensor key, value;
  at::Tensor key_before_norm{};  // [n, num_kv_heads, head_dim]
  at::Tensor key_rms{};          // [n, num_kv_heads], what the norm divided by
  at::Tensor
      latent{};        // [n, rank], of the layer; of rule weighted the group's, with the last layer
  at::Tensor score{};  // [n], of that

  NewKeyValue narrow(std::int64_t first, std::int64_t count) const;
};

// New tokens of one sequence.
struct NewTokens {
  std::int64_t prompt_end =
      0;                 // that the sequence has once all of their prompt was read; 0: no prompt's
  at::Tensor positions;  // [count]
  NewKeyValue raw{};
  at::Tensor key{};  // raw.key, post-RoPE

  bool end_prompt() const { return positions[-1].item<std::int64_t>() + 1 == prompt_end; }
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
  // True if the layer makes keys and values of its own; otherwise new tokens come without.
  virtual bool has_own_keys() const { return true; }
  // Keys and values of all tokens of the batch for a prompt's exact attention: their own, unless the
  // source replaces them.
  virtual NewKeyValue keys_and_values(int layer, const AttentionInput& input);
  // Stores one sequence's tokens in its cache.
  virtual void store(int layer, const NewTokens& tokens, KvCache& cache) = 0;
  // True if a new sequence's prompt attends to exact keys and values, not to stored ones.
  virtual bool reads_prompts_exactly() const { return true; }
  // After attention of these tokens, query [count, num_heads, head_dim] post-RoPE.
  virtual void attended(int /*layer*/, const NewTokens& /*tokens*/, const at::Tensor& /*query*/,
                        KvCache& /*cache*/) {}
  // After attention of all of a prompt: what nothing reads exactly any more becomes what the cache keeps.
  virtual void prompt_read(int layer, PromptCompression& prompt);
  // All of this for new tokens: stores them, attends, and calls `attended`. Those of a prompt attend to all of it so far,
  // exactly where that is possible; generated ones to everything stored.
  virtual at::Tensor read(int layer, const NewTokens& tokens, const at::Tensor& query,
                          KvCache& cache, PromptKeys& prompt);
  virtual at::Tensor extend(int layer, const NewTokens& tokens, const at::Tensor& query,
                            KvCache& cache);
  // The queries of the last tokens of one sequence, which are stored, over all that is kept of it (up to
  // the last position: layers that others read may have stored more of a prompt). query
  // [T, num_heads, head_dim] post-RoPE, positions [T]. [T, num_heads * head_dim] in the query's dtype.
  virtual at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                            const KvCache& cache) const = 0;

 protected:
  const SourceContext& context() const { return context_; }
  const std::vector<int>& layers() const { return layers_; }
  int index_of(int layer) const { return layer - layers_.front(); }
  bool is_last(int layer) const { return layer == layers_.back(); }
  // Arguments of attended(), for one of the `sharing` layers that keep the same tokens.
  GroupAttended group_attended(const std::vector<int>& sharing, int layer, const NewTokens& tokens,
                               const at::Tensor& query) const;

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
