#include <vector>

#include "core/error.h"
#include "runtime/attention/coded_attention.h"
#include "runtime/attention/coded_prompt.h"
#include "runtime/attention/kept_group.h"
#include "runtime/attention/layer_source.h"
#include "runtime/compression/coding.h"
#include "runtime/compression/key_forms.h"
#include "runtime/compression/leaving_codes.h"

namespace kvc {
namespace {

// A token policy's view of coded layers that are stored together.
class KeptCodes : public TokensOfAllHeads {
 public:
  // layer: the one that attended
  KeptCodes(const CodedLayer& layer, CodedStore& store) : layer_(layer), store_(store) {}

  at::Tensor keys(std::int64_t num_tokens) const override {
    std::vector<at::Tensor> keys;
    for (const Segment& segment : coded_segments(layer_, at::kFloat, num_tokens)) {
      keys.push_back(segment.key);
    }
    return at::cat(keys);
  }
  std::int64_t num_rows() const override {
    return store_.positions().codes.num_rows() + store_.positions().exact.num_rows();
  }
  at::Tensor scores() const override { return store_.scores().tensor(); }
  void set_scores(const at::Tensor& scores) override {
    const std::int64_t codes = store_.num_codes();
    store_.scores().assign(scores.slice(0, 0, codes), scores.slice(0, codes));
  }

 protected:
  at::Tensor positions() const override { return store_.positions().tensor().to(at::kLong); }
  void remove(const std::vector<std::int64_t>& rows, bool is_step) override {
    remove_coded_rows(layer_.coded, rows, is_step, store_);
  }

 private:
  CodedLayer layer_;
  CodedStore& store_;
};

class CodedSource : public LayerSource {
 public:
  CodedSource(const SourceContext& context, const CodedLayers& layers)
      : LayerSource(context, layers.first_layer, layers.num_layers) {}

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    CodedStore& store = cache.coded(layer);
    const at::Tensor& exact_key =
        stores_raw_keys(context().decoder.config(), layer) ? tokens.raw.key : tokens.key;
    if (index_of(layer) == 0 && !store.columns.empty()) {
      store.append_positions(tokens.positions);
    }
    store.exact[static_cast<std::size_t>(index_of(layer))].append(exact_key, tokens.raw.value);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_coded(coded_layer(layer, cache), query, positions);
  }

  // Codes follow each block of tokens, so later ones of the same text read them: it comes here only where
  // reads_codes_by_layer.
  at::Tensor read(int layer, const NewTokens& tokens, const at::Tensor& query, KvCache& cache,
                  PromptKeys& prompt) override {
    return codes_prompts(context().plan) || context().pass == Pass::kContinue
               ? read_coded_prompt(context(), layer, tokens, query, cache.coded(layer), prompt)
               : LayerSource::read(layer, tokens, query, cache, prompt);
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query,
                KvCache& cache) override {
    if (!context().policy.is_full()) {
      KeptCodes codes(coded_layer(layer, cache), cache.coded(layer));
      finish_group(group_attended(layers(), layer, tokens, query), cache.kept_coded(layer), codes);
    }
  }

  void prompt_read(int layer, PromptCompression& prompt) override {
    if (is_last(layer)) {
      code_tokens(context().decoder, context().plan, context().factors.coded,
                  prompt.cache().coded(layer));
    }
  }

 private:
  CodedLayer coded_layer(int layer, const KvCache& cache) const {
    return {{context().decoder, context().plan, context().factors.coded, cache.coded(layer)},
            index_of(layer)};
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
