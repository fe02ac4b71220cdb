#include <algorithm>

#include "core/token_policy.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/pruned_attention.h"

namespace kvc {
namespace {

class PrunedSource : public LayerSource {
 public:
  using LayerSource::LayerSource;

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    cache.pruned_layer(layer).store.append(tokens.key, tokens.raw.value);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_pruned(context().decoder, layer, cache.pruned_layer(layer).store, query,
                         positions);
  }

  // At a prompt's end all tokens but the last ones lose channels: those that the first prompt with such
  // tokens chose.
  void attended(int layer, const NewTokens& tokens, const at::Tensor& query,
                KvCache& cache) override {
    if (tokens.prompt_end == 0) {
      return;
    }
    PrunedLayer& pruned = cache.pruned_layer(layer);
    const TokenPolicy& policy = context().policy;
    at::Tensor& held = pruned.held_query;
    held = held.defined() ? at::cat({held, query}) : query;
    held = held.slice(0, std::max<std::int64_t>(0, held.size(0) - policy.window_tokens)).clone();
    if (!tokens.end_prompt()) {
      return;
    }
    PrunedStore& store = pruned.store;
    const std::int64_t count =
        pruned_rows_of(policy, context().plan, store.num_rows()) - store.num_pruned();
    if (count > 0) {
      if (!store.has_channels()) {
        store.set_channels(important_channels(held, store.whole().key.rows(at::kFloat),
                                              kept_channels(policy, context().plan.head_dim)));
      }
      store.prune(count);
    }
    held = at::Tensor();
  }
};

}  // namespace

std::unique_ptr<LayerSource> pruned_source(const SourceContext& context, int layer) {
  return std::make_unique<PrunedSource>(context, layer, 1);
}

}  // namespace kvc
