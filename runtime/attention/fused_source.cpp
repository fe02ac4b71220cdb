#include <algorithm>

#include "core/error.h"
#include "runtime/attention/fused_layer_attention.h"
#include "runtime/attention/kept_plain.h"
#include "runtime/attention/layer_source.h"

namespace kvc {
namespace {

const FusedFactors& factors_of(const SourceContext& context, int layer) {
  const std::vector<FusedFactors>& fused = context.factors.fused;
  const auto found = std::find_if(fused.begin(), fused.end(), [&](const FusedFactors& factors) {
    return factors.layer.layer == layer;
  });
  KVC_CHECK(found != fused.end(), "layer {}: no fusion tensors are loaded", layer);
  return *found;
}

// Stores nothing: the layers that it reads have stored all tokens of the pass before it runs.
class FusedSource : public LayerSource {
 public:
  FusedSource(const SourceContext& context, int layer)
      : LayerSource(context, layer, 1), factors_(factors_of(context, layer)) {}

  bool has_own_keys() const override { return false; }
  bool reads_prompts_exactly() const override { return false; }
  void store(int, const NewTokens&, KvCache&) override {}

  at::Tensor attend(int, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_fused_layer(context().decoder, factors_, cache, query, positions);
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query,
                KvCache& cache) override {
    const SourceContext& pass = context();
    if (pass.policy.is_full()) {
      return;
    }
    const SharingLayers& sharing = cache.sharing(layer);
    KeptLayer& first = cache.kept_layer(sharing.storage.front());
    KeptPlain kept(pass.decoder, sharing, cache, reader_of(cache, first.rows));
    finish_group(group_attended(sharing.layers, layer, tokens, query), first.choice, kept);
  }

 private:
  KeptPlain::Reader reader_of(const KvCache& cache, const KeptRows& first) const {
    return {.keys =
                [this, &cache, &first] {
                  return fused_keys(context().decoder, factors_, cache, first.num_rows(),
                                    at::kFloat);
                },
            .slots = [this, &cache] { return fused_slots(factors_, cache); }};
  }

  const FusedFactors& factors_;
};

}  // namespace

std::unique_ptr<LayerSource> fused_source(const SourceContext& context, int layer) {
  return std::make_unique<FusedSource>(context, layer);
}

}  // namespace kvc
