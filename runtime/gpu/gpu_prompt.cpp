#include "runtime/gpu/gpu_prompt.h"

#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "model/decoder.h"
#include "runtime/compression/latent_encoding.h"
#include "runtime/gpu/coded_prompt_attention.h"
#include "runtime/gpu/gpu_coding.h"
#include "runtime/gpu/gpu_compression.h"
#include "runtime/gpu/gpu_held_rows.h"
#include "runtime/gpu/gpu_policy.h"
#include "runtime/store/token_counts.h"

namespace kvc {
namespace {

// Attention of one prompt's next tokens over all so far, whose keys and values it adds to the cache.
class PromptAttention : public Attention {
 public:
  // The sequence has `num_before` tokens, and with this prompt `num_counted`, which is what the cache counts already.
  PromptAttention(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                  std::int64_t num_before, std::int64_t num_counted, StepExecutor& executor)
      : model_(model),
        plan_(cache.plan()),
        cache_(cache),
        sequence_(sequence),
        num_before_(num_before),
        num_counted_(num_counted),
        executor_(executor) {
    if (codes_prompts_by_layer(plan_, cache.kv_dtype())) {
      through_codes_.emplace(exact_tiles(plan_));
    }
  }

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const std::int64_t total = num_before_ + input.query.size(0);
    const at::Tensor query = rotate_query(model_.config, model_.rope, layer, input.query, batch);
    if (through_codes_ && plan_.layers[static_cast<std::size_t>(layer)] == KvSource::kCoded) {
      write(layer, input, batch.positions);
      return attend_through_codes(layer, query, total);
    }
    const HeldRows rows = rows_of(layer, input, batch.positions, total);
    return causal_attention(query, rows.key, rows.value, attention_rule(model_.config, layer));
  }

 private:
  HeldRows rows_of(int layer, const AttentionInput& input, const at::Tensor& positions,
                   std::int64_t total) {
    if (const FusedFactors* factors = model_.fused_of(layer)) {
      return fused_rows(*factors, total);
    }
    if (const int group = plan_.group_of(layer); group >= 0) {
      return group_rows(layer, group, input, positions, total);
    }
    write(layer, input, positions);
    return stored_rows(layer, total);
  }

  void write(int layer, const AttentionInput& input, const at::Tensor& positions) {
    cache_.write(layer, sequence_, num_before_ - cache_.num_codes(layer, sequence_),
                 finish_key(input.weights, model_.rope, layer, input.key, positions), input.value);
  }

  // Exact rows of the prompt stay until its end; a query reads those of its last tiles.
  at::Tensor attend_through_codes(int layer, const at::Tensor& query, std::int64_t total) {
    code_gpu_piece(model_, cache_, layer, sequence_, num_before_, total, executor_);
    const ExactTiles& tiles = through_codes_->tiles();
    const std::int64_t held = cache_.num_codes(layer, sequence_), sinks = tiles.sinks,
                       first_exact = tiles.start(num_before_), last_exact = tiles.start(total - 1);
    const auto exact = [&](std::int64_t row, std::int64_t count) {
      return PromptRows{cache_.keys(layer, sequence_, row, count),
                        cache_.values(layer, sequence_, row, count)};
    };
    PromptRows own = exact(first_exact - held, total - first_exact), coded = exact(0, 0);
    own.first = first_exact;
    if (last_exact > 0) {
      const PromptRows first = exact(0, sinks);
      const HeldRows decoded =
          decoded_rows(model_, cache_, layer, sequence_, last_exact - sinks, executor_);
      coded = {at::cat({first.key, decoded.key}), at::cat({first.value, decoded.value})};
    }
    return through_codes_->attend(query, coded, own, attention_rule(model_.config, layer));
  }

  HeldRows stored_rows(int layer, std::int64_t total) const {
    return held_rows(model_, cache_, layer, sequence_, total, executor_);
  }

  HeldRows fused_rows(const FusedFactors& factors, std::int64_t total) const {
    std::vector<at::Tensor> keys, values;
    for (const StoredLayers& source : model_.sources_of(factors.layer.layer)) {
      const HeldRows rows = stored_rows(source.key, total);
      keys.push_back(rows.key.to(at::kFloat));
      values.push_back((source.value == source.key ? rows : stored_rows(source.value, total))
                           .value.to(at::kFloat));
    }
    return {fuse(factors.weights.key, factors.pairs, keys).to(model_.dtype),
            fuse(factors.weights.value, factors.pairs, values).to(model_.dtype)};
  }

  at::Tensor heads(const at::Tensor& rows) const {
    return rows.view({rows.size(0), plan_.num_kv_heads, plan_.head_dim});
  }

  // Keys before their norm and values from a layer's own latents.
  HeldRows rebuilt(const RankFactors& factors, const LayerWeights& weights,
                   const at::Tensor& latent) const {
    const Reconstruction layer = factors.tensors();
    const std::int64_t rank = latent.size(1);
    const Linear key{layer.key, weights.k_proj.bias}, value{layer.value, weights.v_proj.bias};
    return {heads(key(latent.narrow(1, 0, factors.key_rank()))),
            heads(value(latent.narrow(1, rank - factors.value_rank(), factors.value_rank())))};
  }

  HeldRows group_rows(int layer, int group, const AttentionInput& input,
                      const at::Tensor& positions, std::int64_t total) {
    const LatentGroup& spec = plan_.groups[static_cast<std::size_t>(group)];
    const GpuGroupFactors& factors = model_.groups[static_cast<std::size_t>(group)];
    const auto index = static_cast<std::size_t>(layer - spec.first_layer);
    GpuGroup& store = cache_.group(group);
    GpuGroupLayer& rows = store.layers[index];
    at::Tensor latent;
    if (needs_latents(plan_, group)) {
      latent = at::linear(input.hidden, factors.factors.latent_proj);
    }
    if (!store.decides()) {
      rows.unmerged_latent->write(sequence_, num_before_, latent);
      return rebuilt_rows(model_, factors.layers[index].tensors(), layer,
                          rows.unmerged_latent->read(sequence_, 0, total),
                          at::arange(total, at::kLong));
    }
    HeldRows exact{input.key, input.value};
    if (plan_.compression.prefill == PrefillMode::kTruncated) {
      exact = rebuilt(factors.layers[index], input.weights, latent);
    }
    const std::int64_t row = store.tokens(sequence_).pending - (num_counted_ - num_before_);
    rows.pending_key->write(sequence_, row,
                            finish_key(input.weights, model_.rope, layer, exact.key, positions));
    rows.pending_value->write(sequence_, row, exact.value);
    if (rows.key_rms) {
      rows.key_rms->write(sequence_, row, key_rms(exact.key, input.weights.k_norm));
    }
    if (rows.held_latent) {
      rows.held_latent->write(sequence_, row, latent);
    }
    if (store.held_weighted) {
      weigh(spec, index, latent, row, store);
    }
    return held_group_rows(model_, cache_, layer, sequence_, total, num_counted_);
  }

  // sum_l w_l A x_l grows with every layer of the group.
  void weigh(const LatentGroup& spec, std::size_t index, const at::Tensor& latent, std::int64_t row,
             GpuGroup& store) {
    const at::Tensor term = latent.to(at::kFloat) * spec.merge_weights[index];
    if (index == 0) {
      first_latent_ = latent;
      weighted_latent_ = term;
    } else {
      weighted_latent_ = weighted_latent_ + term;
    }
    if (static_cast<int>(index) + 1 == spec.num_layers) {
      store.held_weighted->write(sequence_, row, weighted_latent_);
      store.held_score->write(sequence_, row, row_cosine(first_latent_, latent));
    }
  }

  const GpuModel& model_;
  const KvPlan& plan_;
  GpuCache& cache_;
  std::size_t sequence_;
  std::int64_t num_before_, num_counted_;
  StepExecutor& executor_;
  std::optional<CodedPromptAttention> through_codes_;
  at::Tensor first_latent_, weighted_latent_;  // of the group's layers so far
};

// Layer by layer, all tokens.
at::Tensor read_piece(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                      const std::vector<std::int64_t>& ids, const GpuPromptOptions& options,
                      StepExecutor& executor) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::int64_t num_tokens = options.num_before + count;
  cache.begin_prompt(sequence, count);
  std::vector<at::Tensor> logits;
  std::int64_t first = options.num_before;
  for (const TokenBatch& batch :
       prompt_batches(ids, options.chunk, model.device(), options.num_before)) {
    if (options.stopped && options.stopped()) {
      throw Interrupted();
    }
    PromptAttention attention(model, cache, sequence, first, num_tokens, executor);
    at::Tensor hidden_states = embed(model.config, model.weights, batch.ids, model.dtype);
    for (int layer = 0; layer < model.config.num_layers; ++layer) {
      hidden_states = run_layer(model.config, model.layers[static_cast<std::size_t>(layer)], layer,
                                hidden_states, batch, attention);
    }
    first += hidden_states.size(0);
    if (options.all_logits) {
      logits.push_back(compute_logits(model.config, model.weights, hidden_states));
    } else if (first == num_tokens) {
      logits.push_back(compute_logits(model.config, model.weights,
                                      hidden_states.slice(0, hidden_states.size(0) - 1)));
    }
  }
  compress_gpu_prompt(model, cache, sequence, num_tokens);
  return at::cat(logits);
}

// Piece by piece, as tokens that are generated: what leaves the window becomes codes before the next piece.
at::Tensor read_until_codes(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                            const std::vector<std::int64_t>& ids, const GpuPromptOptions& options,
                            StepExecutor& executor) {
  std::vector<at::Tensor> logits;
  GpuPromptOptions of_piece = options;
  for (auto first = ids.begin(); first != ids.end();) {
    const std::int64_t left = ids.end() - first,
                       due = tokens_until_codes(cache.plan(), cache.num_exact(sequence));
    const auto last = first + std::min(left, due);
    if (!options.all_logits) {
      logits.clear();
    }
    logits.push_back(read_piece(model, cache, sequence, std::vector<std::int64_t>(first, last),
                                of_piece, executor));
    code_gpu_prompt(model, cache, sequence, executor);
    of_piece.num_before += last - first;
    first = last;
  }
  return at::cat(logits);
}

}  // namespace

std::vector<TokenBatch> prompt_batches(const std::vector<std::int64_t>& ids, std::int64_t chunk,
                                       at::Device device, std::int64_t num_before) {
  std::vector<TokenBatch> batches;
  for (PromptPiece& piece : pieces_of({ids}, {num_before}, {false}, chunk)) {
    piece.batch.ids = piece.batch.ids.to(device);
    batches.push_back(std::move(piece.batch));
  }
  return batches;
}

at::Tensor read_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                           const std::vector<std::int64_t>& ids, const GpuPromptOptions& options,
                           StepExecutor& executor) {
  if (cache.kept() != nullptr) {
    return read_kept_prompt(model, cache, sequence, ids, options, executor);
  }
  const c10::InferenceMode guard;
  const bool are_pieces =
      codes_prompts(cache.plan()) && !codes_prompts_by_layer(cache.plan(), cache.kv_dtype());
  return (are_pieces ? read_until_codes : read_piece)(model, cache, sequence, ids, options,
                                                      executor);
}

}  // namespace kvc
