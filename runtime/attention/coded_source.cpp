#include "core/error.h"
#include "runtime/attention/cache_segments.h"
#include "runtime/attention/coded_attention.h"
#include "runtime/attention/kept_codes.h"
#include "runtime/attention/layer_source.h"
#include "runtime/compression/coding.h"

namespace kvc {
namespace {

class CodedSource : public LayerSource {
 public:
  CodedSource(const SourceContext& context, const CodedLayers& layers)
      : LayerSource(context, layers.first_layer, layers.num_layers) {}

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    const bool raw = stores_raw_keys(context().decoder.config(), layer);
    CodedStore& store = cache.coded(layer);
    if (index_of(layer) == 0 && !store.columns.empty()) {
      store.append_positions(tokens.positions);
    }
    store.exact[static_cast<std::size_t>(index_of(layer))].append(raw ? tokens.raw_key : tokens.key,
                                                                  tokens.value);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_coded(
        context().decoder,
        CodedLayer{context().plan, context().factors.coded, cache.coded(layer), index_of(layer)},
        query, positions);
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query,
                KvCache& cache) override {
    if (!context().policy.is_full()) {
      CodedStore& store = cache.coded(layer);
      KeptCodes codes(context().decoder, context().plan, context().factors.coded, index_of(layer),
                      store);
      finish_group(group_attended(layers(), layer, tokens, query), cache.kept_coded(layer), codes);
    }
  }

  void prompt_read(int layer, PromptCompression& prompt) override {
    if (is_last(layer)) {
      code_tokens(context().decoder, context().plan, context().factors.coded,
                  prompt.cache().coded(layer));
    }
  }
};

}  // namespace

std::unique_ptr<LayerSource> coded_source(const SourceContext& context, int layer) {
  for (const CodedLayers& layers : coded_layers(context.plan)) {
    if (layer < layers.first_layer + layers.num_layers) {
      return std::make_unique<CodedSource>(context, layers);
    }
  }
  fail("layer {}: no coded block covers it", layer);
}

}  // namespace kvc
