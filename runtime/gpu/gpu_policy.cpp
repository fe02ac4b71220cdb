#include "runtime/gpu/gpu_policy.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "core/error.h"
#include "model/decoder.h"
#include "runtime/policies/policy_check.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

// One layer's attention over the tokens of a prompt so far, all of whose keys and values it holds.
class LayerAttention : public Attention {
 public:
  // scoring: of the prompt's last tokens, queries that are kept.
  LayerAttention(const GpuModel& model, std::int64_t num_tokens, std::int64_t scoring)
      : model_(model),
        num_tokens_(num_tokens),
        first_scoring_(num_tokens - scoring),
        key_(at::empty({num_tokens, model.config.num_kv_heads, model.config.head_dim},
                       at::TensorOptions(model.dtype).device(model.device()))),
        value_(at::empty_like(key_)) {}

  std::int64_t bytes() const { return static_cast<std::int64_t>(key_.nbytes() + value_.nbytes()); }
  void begin_layer() {
    num_read_ = 0;
    queries_.clear();
  }

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const at::Tensor query = rotate_query(model_.config, model_.rope, layer, input.query, batch);
    const std::int64_t count = query.size(0), first = num_read_;
    key_.narrow(0, first, count)
        .copy_(finish_key(input.weights, model_.rope, layer, input.key, batch.positions));
    value_.narrow(0, first, count).copy_(input.value);
    num_read_ += count;
    if (num_read_ > first_scoring_) {
      queries_.push_back(query.slice(0, std::max<std::int64_t>(0, first_scoring_ - first)));
    }
    return causal_attention(query, key_.narrow(0, 0, num_read_), value_.narrow(0, 0, num_read_),
                            attention_rule(model_.config, layer));
  }

  const at::Tensor& key() const { return key_; }
  const at::Tensor& value() const { return value_; }
  // That the prompt's last queries give each token, [num_tokens, num_kv_heads] float32.
  at::Tensor scores(const TokenPolicy& policy, int layer) const {
    return attention_scores({.policy = policy,
                             .rule = attention_rule(model_.config, layer),
                             .num_new = num_tokens_,
                             .query = at::cat(queries_)},
                            key_.to(at::kFloat), {});
  }

 private:
  const GpuModel& model_;
  std::int64_t num_tokens_, first_scoring_, num_read_ = 0;
  at::Tensor key_, value_;  // [num_tokens, num_kv_heads, head_dim]
  std::vector<at::Tensor> queries_;
};

void keep_running(const TokenPolicy& policy, int layer, std::size_t sequence,
                  const LayerAttention& prompt, StepExecutor& executor, GpuKept& kept) {
  HeadTokens all{prompt.key().transpose(0, 1), prompt.value().transpose(0, 1), {}, {}};
  if (policy.has_scores()) {
    all.scores = prompt.scores(policy, layer).t();
  }
  const std::int64_t budget = kept.room(layer, sequence).budget;
  if (all.key.size(1) > budget) {
    kept.write(layer, sequence, lay_out(policy, running_layout(policy, budget), all), executor);
  } else {
    kept.write(layer, sequence, all);
  }
}

void keep_voted(const TokenPolicy& policy, int layer, std::size_t sequence,
                const LayerAttention& prompt, const RowCoder& coder, GpuKept& kept) {
  const std::int64_t num_tokens = prompt.key().size(0), budget = kept.room(layer, sequence).budget;
  if (num_tokens <= budget) {
    return kept.write_last(layer, sequence, num_tokens, prompt.key(), prompt.value(), coder);
  }
  const at::Tensor index = voted_rows(policy, prompt.scores(policy, layer), budget)
                               .unsqueeze(2)
                               .expand({-1, -1, prompt.key().size(2)});
  kept.write_last(layer, sequence, num_tokens, prompt.key().gather(0, index),
                  prompt.value().gather(0, index), coder);
}

}  // namespace

void check_gpu_policy(const TokenPolicy& policy, const CacheTypes& types, const ModelConfig& config,
                      const KvPlan& plan) {
  if (policy.is_full()) {
    return;
  }
  const std::string name = to_string(policy.kind);
  check_token_policy(policy, plan, config, types.kv);
  KVC_CHECK(!policy.prunes_channels(),
            "--device cuda: --policy {} is not supported, because it removes channels of keys; use "
            "snapkv, or --device cpu",
            name);
  KVC_CHECK(plan.num_layers_from(KvSource::kPlain) == plan.num_layers(),
            "--device cuda: --policy {} requires plain layers; {} of {} layers are converted. "
            "Leave --policy out, or use --device cpu",
            name, plan.num_layers() - plan.num_layers_from(KvSource::kPlain), plan.num_layers());
  KVC_CHECK(!policy.compress_chunks && !policy.cache_positions,
            "--device cuda: --policy {}: {} is not supported; use {}, or --device cpu", name,
            policy.compress_chunks ? "compress-at=chunk" : "pos=cache",
            policy.compress_chunks ? "compress-at=end" : "pos=true");
}

at::Tensor read_kept_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                            const std::vector<std::int64_t>& ids, const GpuPromptOptions& options,
                            StepExecutor& executor) {
  const c10::InferenceMode guard;
  GpuKept& kept = *cache.kept();
  const TokenPolicy& policy = kept.policy();
  const auto num_tokens = static_cast<std::int64_t>(ids.size());
  const std::vector<TokenBatch> pieces = prompt_batches(ids, options.chunk, model.device());
  LayerAttention attention(model, num_tokens, scoring_queries(policy, num_tokens));
  kept.page_bytes().add(attention.bytes());
  std::vector<at::Tensor> hidden_states;
  for (const TokenBatch& piece : pieces) {
    hidden_states.push_back(embed(model.config, model.weights, piece.ids, model.dtype));
  }
  for (int layer = 0; layer < model.config.num_layers; ++layer) {
    attention.begin_layer();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (options.stopped && options.stopped()) {
        throw Interrupted();
      }
      hidden_states[i] = run_layer(model.config, model.layers[static_cast<std::size_t>(layer)],
                                   layer, hidden_states[i], pieces[i], attention);
    }
    policy.is_running() ? keep_running(policy, layer, sequence, attention, executor, kept)
                        : keep_voted(policy, layer, sequence, attention, {model, executor}, kept);
  }
  kept.page_bytes().add(-attention.bytes());
  if (!options.all_logits) {
    hidden_states = {hidden_states.back().slice(0, hidden_states.back().size(0) - 1)};
  }
  for (at::Tensor& rows : hidden_states) {
    rows = compute_logits(model.config, model.weights, rows);
  }
  return at::cat(hidden_states);
}

void end_policy_step(const GpuModel& model, GpuCache& cache,
                     const std::vector<std::int64_t>& num_tokens, StepExecutor& executor) {
  if (cache.kept() == nullptr) {
    return;
  }
  const c10::InferenceMode guard;
  GpuKept& kept = *cache.kept();
  if (!kept.is_running()) {
    return kept.code_blocks(num_tokens, {model, executor});
  }
  for (std::size_t sequence = 0; sequence < num_tokens.size(); ++sequence) {
    for (int layer = 0; layer < cache.plan().num_layers(); ++layer) {
      const std::int64_t budget = kept.room(layer, sequence).budget;
      if (num_tokens[sequence] == budget + 1 && kept.room(layer, sequence).rows > budget) {
        kept.write(layer, sequence,
                   lay_out(kept.policy(), running_layout(kept.policy(), budget),
                           kept.read(layer, sequence, budget + 1)),
                   executor);
      }
    }
  }
}

std::int64_t policy_work_bytes(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                               const ModelConfig& config, const std::vector<std::int64_t>& lengths,
                               std::int64_t new_tokens, int multiprocessors) {
  if (policy.is_full()) {
    return 0;
  }
  const std::int64_t most_products = scores_at_once(at::kCUDA);
  std::int64_t reading = 0, most_rows = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t queries = scoring_queries(policy, length);
    const std::int64_t products = std::min(queries * config.num_heads * length,
                                           std::max(most_products, config.num_heads * length));
    // Hidden states of all pieces; keys in float32, and those that merge; queries; products and their softmax.
    reading = std::max(reading, 2 * length * config.hidden_size + 3 * 4 * length * plan.kv_dim() +
                                    2 * queries * config.q_dim() + 3 * 4 * products);
    most_rows = std::max(most_rows, kept_room(plan, policy, 0, length, length + new_tokens).rows);
  }
  const auto sequences = static_cast<std::int64_t>(lengths.size());
  const std::int64_t blocks = sequences * plan.num_kv_heads;
  if (is_integer(dtype) && !policy.is_running()) {  // partial softmaxes of codes, of two kinds
    const std::int64_t parts =
        attention_parts(multiprocessors, static_cast<int>(blocks), static_cast<int>(most_rows));
    return reading + 2 * 4 * sequences * parts * config.num_heads * (config.head_dim + 2);
  }
  // Products, and a counter of each KV head.
  const std::int64_t step = 4 * (sequences * config.num_heads * (most_rows + 1) + blocks);
  return reading + (policy.is_running() ? step : 0);
}

}  // namespace kvc
