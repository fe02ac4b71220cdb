#include <algorithm>

#include "runtime/attention/kept_attention.h"
#include "runtime/attention/kept_plain.h"
#include "runtime/attention/layer_source.h"
#include "runtime/kernels/decayed_scores.h"
#include "runtime/kernels/query_quads.h"

namespace kvc {
namespace {

class KeptSource : public LayerSource {
 public:
  using LayerSource::LayerSource;

  bool reads_prompts_exactly() const override { return !context().policy.compress_chunks; }

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    cache.kept_layer(layer).rows.append(tokens.key, tokens.raw.value, tokens.positions);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_kept(context().decoder, layer, cache.kept_layer(layer).rows, context().policy,
                       query, positions, nullptr);
  }

  at::Tensor extend(int layer, const NewTokens& tokens, const at::Tensor& query,
                    KvCache& cache) override {
    const TokenPolicy& policy = context().policy;
    const int first = cache.sharing(layer).storage.front();
    KeptRows& scored = cache.kept_layer(first).rows;  // of all layers that keep the same tokens
    if (!policy.has_scores() || !scored.per_head()) {
      return LayerSource::extend(layer, tokens, query, cache);
    }
    store(layer, tokens, cache);
    const KeptRows& rows = cache.kept_layer(layer).rows;
    const std::vector<float*> blocks = scored.score_blocks();
    const auto num_blocks = static_cast<std::int64_t>(blocks.size());
    const std::int64_t page = scored.page();
    RowScores scores;
    // A thread's share of the rows: some of their blocks.
    scores.after = [&](const float* log_sum, std::int64_t thread, std::int64_t threads) {
      const std::int64_t begin = num_blocks * thread / threads;
      const std::int64_t end = num_blocks * (thread + 1) / threads;
      update_decayed_scores(
          {.scores = {scores.scores.numbers + begin * page * kQuad, scores.scores.stride},
           .log_sum = log_sum,
           .num_rows = std::min(end * page, scored.num_rows()) - begin * page,
           .num_heads = query.size(1),
           .num_kv_heads = context().plan.num_kv_heads,
           .decay = static_cast<float>(layer == first ? policy.lambda : 1),
           .to = blocks.data() + begin,
           .block_rows = page});
    };
    at::Tensor output =
        attend_kept(context().decoder, layer, rows, policy, query, tokens.positions, &scores);
    attended(layer, tokens, query, cache);
    return output;
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query,
                KvCache& cache) override {
    const SourceContext& pass = context();
    const SharingLayers& sharing = cache.sharing(layer);
    KeptPlain kept(pass.decoder, sharing, cache, KeptPlain::reader_of(pass.decoder, layer, cache));
    GroupAttended group = group_attended(sharing.layers, layer, tokens, query);
    group.is_scored = kept.scores_steps();
    finish_group(group, cache.kept_layer(sharing.storage.front()).choice, kept);
  }
};

}  // namespace

std::unique_ptr<LayerSource> kept_source(const SourceContext& context, int layer) {
  return std::make_unique<KeptSource>(context, layer, 1);
}

}  // namespace kvc
