#include <algorithm>

#include "runtime/attention/kept_attention.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/kernels/decayed_scores.h"
#include "runtime/kernels/query_quads.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

class KeptSource : public LayerSource {
 public:
  using LayerSource::LayerSource;

  bool reads_prompts_exactly() const override { return !context().policy.compress_chunks; }

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    cache.kept_layer(layer).rows.append(tokens.key, tokens.value, tokens.positions);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_kept(context().decoder, layer, cache.kept_layer(layer).rows, context().policy,
                       query, positions, nullptr);
  }

  at::Tensor extend(int layer, const NewTokens& tokens, const at::Tensor& query,
                    KvCache& cache) override {
    const TokenPolicy& policy = context().policy;
    if (!policy.has_scores()) {
      return LayerSource::extend(layer, tokens, query, cache);
    }
    store(layer, tokens, cache);
    KeptRows& rows = cache.kept_layer(layer).rows;
    const std::vector<float*> blocks = rows.score_blocks();
    RowScores scores;
    scores.after = [&](const float* log_sum, std::int64_t thread, std::int64_t threads) {
      add_scores(scores.scores, log_sum, query.size(1), {thread, threads}, rows, blocks);
    };
    at::Tensor output =
        attend_kept(context().decoder, layer, rows, policy, query, tokens.positions, &scores);
    attended(layer, tokens, query, 0, cache);
    return output;
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query, std::int64_t end,
                KvCache& cache) override {
    KeptLayer& kept = cache.kept_layer(layer);
    const TokenPolicy& policy = context().policy;
    if (end == 0) {
      if (kept.budget == 0 && (policy.budget.tokens > 0 || !policy.has_scores())) {
        kept.budget = budget_at(layer, 0);
      }
      finish_token(policy, kept, turn_of(layer));
      return;
    }
    kept.held_queries.push_back(query);
    kept.num_held += tokens.count;
    const bool is_last = tokens.positions[-1].item<std::int64_t>() + 1 == end;
    if (is_last || policy.compress_chunks) {
      kept.budget = budget_at(layer, end);
      const at::Tensor held = at::cat(kept.held_queries);
      const std::int64_t scoring = scoring_queries(policy, kept.num_held);
      finish_prompt({.policy = policy,
                     .rule = attention_rule(context().decoder.config(), layer),
                     .num_new = kept.num_held,
                     .query = held.slice(0, held.size(0) - std::min(scoring, held.size(0))),
                     .turn = turn_of(layer)},
                    kept);
      kept.held_queries.clear();
      kept.num_held = 0;
    }
  }

 private:
  KeptRows::TurnKeys turn_of(int layer) const {
    return
        [&decoder = context().decoder, layer](const at::Tensor& key, const at::Tensor& positions) {
          return key_of_codes(decoder, layer, key, positions);
        };
  }

  std::int64_t budget_at(int layer, std::int64_t num_tokens) const {
    return layer_budget(context().policy, num_tokens, layer, context().plan.num_layers());
  }

  // One of so many threads' share of the rows.
  struct Share {
    std::int64_t thread, threads;
    std::int64_t first_of(std::int64_t count) const { return count * thread / threads; }
    std::int64_t last_of(std::int64_t count) const { return count * (thread + 1) / threads; }
  };
  void add_scores(const QuadScores& scores, const float* log_sum, std::int64_t num_heads,
                  const Share& share, const KeptRows& rows,
                  const std::vector<float*>& blocks) const {
    const auto num_blocks = static_cast<std::int64_t>(blocks.size());
    const std::int64_t page = rows.page(), block = share.first_of(num_blocks);
    const std::int64_t first = block * page;
    update_decayed_scores(
        {.scores = {scores.numbers + first * kQuad, scores.stride},
         .log_sum = log_sum,
         .num_rows = std::min(share.last_of(num_blocks) * page, rows.num_rows()) - first,
         .num_heads = num_heads,
         .num_kv_heads = context().plan.num_kv_heads,
         .decay = static_cast<float>(context().policy.lambda),
         .to = blocks.data() + block,
         .block_rows = page});
  }
};

}  // namespace

std::unique_ptr<LayerSource> kept_source(const SourceContext& context, int layer) {
  return std::make_unique<KeptSource>(context, layer, 1);
}

}  // namespace kvc
