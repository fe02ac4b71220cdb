#include "convert/fusion/fusion_moments.h"

#include <algorithm>

#include "core/error.h"
#include "core/progress.h"
#include "model/layer_stream.h"
#include "model/tensor_memory.h"

namespace kvc {
namespace {

// Rows of the layers that others read, float32, for every token.
class SourceRows {
 public:
  SourceRows(const ConversionJob& job, const std::vector<int>& layers) : layers_(layers) {
    rows_ =
        make_scratch_tensor({static_cast<std::int64_t>(layers.size()), 2, job.tokens.num_tokens(),
                             job.config.num_kv_heads, job.config.head_dim},
                            at::kFloat, job.directory);
  }
  bool has(int layer) const { return std::binary_search(layers_.begin(), layers_.end(), layer); }
  at::Tensor rows(KvPart part, int layer, std::int64_t first, std::int64_t count) const {
    const auto index = std::lower_bound(layers_.begin(), layers_.end(), layer) - layers_.begin();
    return rows_[index][part == KvPart::kKey ? 0 : 1].narrow(0, first, count);
  }

 private:
  std::vector<int> layers_;  // ascending
  at::Tensor rows_;          // [layers, key or value, num_tokens, num_kv_heads, head_dim]
};

std::vector<int> layers_read(const std::vector<std::vector<int>>& sources) {
  std::vector<int> layers;
  for (const std::vector<int>& of_layer : sources) {
    layers.insert(layers.end(), of_layer.begin(), of_layer.end());
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

// [num_tokens, num_kv_heads, 2, head_dim / 2]
at::Tensor in_pairs(const at::Tensor& rows, const ChannelPairs& pairs) {
  return at::stack({rows.index_select(-1, pairs.first), rows.index_select(-1, pairs.second)}, 2);
}

}  // namespace

void FusionMoments::want(int a, int b) {
  const std::int64_t kv_heads = config_.num_kv_heads, half = config_.head_dim / 2;
  const std::int64_t heads_b = scope_ == ProductScope::kAllHeads ? kv_heads : 1;
  const std::vector<std::int64_t> shape =
      scope_ == ProductScope::kMatrices
          ? std::vector<std::int64_t>{config_.kv_dim(), config_.kv_dim()}
          : std::vector<std::int64_t>{kv_heads, heads_b, 2, 2, half};
  for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
    at::Tensor& product = products_[{part, {std::max(a, b), std::min(a, b)}}];
    if (!product.defined()) {
      product = at::zeros(shape, at::kDouble);
    }
    for (const int layer : {a, b}) {
      ChannelSums& sums = sums_[{part, layer}];
      if (!sums.sum.defined()) {
        sums = {at::zeros({kv_heads, config_.head_dim}, at::kDouble),
                at::zeros({kv_heads, config_.head_dim}, at::kDouble)};
      }
    }
  }
}

void FusionMoments::add_sums(KvPart part, int layer, const at::Tensor& rows) {
  ChannelSums& sums = sums_.at({part, layer});
  sums.sum.add_(rows.sum(0));
  sums.squares.add_(rows.square().sum(0));
}

void FusionMoments::add_product(int layer, const at::Tensor& a, const at::Tensor& b,
                                at::Tensor& product) const {
  const at::Tensor other = b.to(at::kDouble);
  if (scope_ == ProductScope::kMatrices) {
    product.addmm_(a.flatten(1).t(), other.flatten(1));
    return;
  }
  const ChannelPairs pairs = channel_pairs(config_, layer);
  const at::Tensor x = in_pairs(a, pairs), y = in_pairs(other, pairs);
  product.add_(scope_ == ProductScope::kAllHeads
                   ? at::einsum("tgcp,thdp->ghcdp", {x, y})
                   : at::einsum("tgcp,tgdp->gcdp", {x, y}).unsqueeze(1));
}

at::Tensor FusionMoments::products(KvPart part, int a, const at::Tensor& heads_a, int b,
                                   const at::Tensor& heads_b) const {
  if (a < b) {
    return products(part, b, heads_b, a, heads_a).transpose(1, 2);
  }
  const at::Tensor& sum = products_.at({part, {a, b}});
  const at::Tensor columns = sum.size(1) == 1 ? at::zeros_like(heads_b) : heads_b;
  return sum.index({heads_a, columns});
}

at::Tensor FusionMoments::matrix(KvPart part, int a, int b) const {
  return a < b ? matrix(part, b, a).t() : products_.at({part, {a, b}});
}

FusionMoments measure_fusion_moments(const ConversionJob& job,
                                     const std::vector<std::vector<int>>& sources,
                                     ProductScope scope) {
  FusionMoments moments(job.config, scope);
  int end = 0;
  for (int layer = 0; layer < static_cast<int>(sources.size()); ++layer) {
    for (const int a : sources[static_cast<std::size_t>(layer)]) {
      moments.want(layer, a);
      for (const int b : sources[static_cast<std::size_t>(layer)]) {
        moments.want(a, b);
      }
      end = layer + 1;
    }
  }
  const SourceRows stored(job, layers_read(sources));
  LayerStreamOptions options;
  options.spill_directory = job.directory;
  LayerStream stream(job.checkpoint, job.config, job.tokens, options);
  Progress progress("measure keys and values",
                    static_cast<std::int64_t>(end) * stream.num_batches());
  for (int layer = 0; layer < end; ++layer) {
    std::int64_t first = 0;
    stream.advance(1, [&](const LayerActivations& activations) {
      const std::int64_t count = activations.key.size(0);
      const at::Tensor key = activations.weights.k_norm.over_heads(activations.key);
      if (stored.has(layer)) {
        stored.rows(KvPart::kKey, layer, first, count).copy_(key);
        stored.rows(KvPart::kValue, layer, first, count).copy_(activations.value);
      }
      if (moments.wanted(layer)) {
        moments.add(layer, [&](KvPart part, int of) {
          return of == layer ? (part == KvPart::kKey ? key : activations.value)
                             : stored.rows(part, of, first, count);
        });
      }
      first += count;
      progress.advance();
    });
  }
  moments.count_tokens(job.tokens.num_tokens());
  return moments;
}

}  // namespace kvc
