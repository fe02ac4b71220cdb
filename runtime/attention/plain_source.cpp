#include "runtime/attention/layer_source.h"
#include "runtime/attention/plain_attention.h"

namespace kvc {
namespace {

class PlainSource : public LayerSource {
 public:
  using LayerSource::LayerSource;

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    cache.plain_layer(layer).append(tokens.key, tokens.raw.value, tokens.positions);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_plain(context().decoder, layer, cache.plain_layer(layer),
                        context().plan.compression.sink_tokens, query, positions);
  }
};

}  // namespace

std::unique_ptr<LayerSource> plain_source(const SourceContext& context, int layer) {
  return std::make_unique<PlainSource>(context, layer, 1);
}

}  // namespace kvc
