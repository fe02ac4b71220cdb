#include <algorithm>

#include "model/parallel.h"
#include "runtime/attention/kept_attention.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/kernels/decayed_scores.h"
#include "runtime/kernels/query_quads.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

constexpr std::int64_t kScoresPerThread = std::int64_t{1} << 12;  // below, threads cost more

class KeptSource : public LayerSource {
 public:
  using LayerSource::LayerSource;

  bool reads_prompts_exactly() const override { return !context().policy.compress_chunks; }

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    cache.kept_layer(layer).rows.append(tokens.key, tokens.value, tokens.positions);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    const bool scores = context().pass == Pass::kExtend && context().policy.has_scores();
    return attend_kept(context().decoder, layer, cache.kept_layer(layer).rows, context().policy,
                       query, positions, scores ? &row_scores_ : nullptr);
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query, std::int64_t end,
                KvCache& cache) override {
    KeptLayer& kept = cache.kept_layer(layer);
    const TokenPolicy& policy = context().policy;
    if (end == 0) {
      if (kept.budget == 0 && (policy.budget.tokens > 0 || !policy.has_scores())) {
        kept.budget = budget_at(layer, 0);
      }
      if (policy.has_scores()) {
        add_scores(query.size(1), kept.rows);
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

  // Of the query that was attended last.
  void add_scores(std::int64_t num_heads, KeptRows& rows) const {
    const std::vector<float*> blocks = rows.score_blocks();
    const std::int64_t page = rows.page();
    const std::int64_t grain = std::max<std::int64_t>(1, kScoresPerThread / (page * num_heads));
    parallel_pieces(
        static_cast<std::int64_t>(blocks.size()), grain, [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t first = begin * page;
          const QuadScores& all = row_scores_.scores;
          update_decayed_scores({.scores = {all.numbers + first * kQuad, all.stride},
                                 .log_sum = row_scores_.log_sum.const_data_ptr<float>(),
                                 .num_rows = std::min(end * page, rows.num_rows()) - first,
                                 .num_heads = num_heads,
                                 .num_kv_heads = context().plan.num_kv_heads,
                                 .decay = static_cast<float>(context().policy.lambda),
                                 .to = blocks.data() + begin,
                                 .block_rows = page});
        });
  }

  mutable RowScores row_scores_;
};

}  // namespace

std::unique_ptr<LayerSource> kept_source(const SourceContext& context, int layer) {
  return std::make_unique<KeptSource>(context, layer, 1);
}

}  // namespace kvc
