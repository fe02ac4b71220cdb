#include "model/fused_kv.h"

#include <fmt/format.h>

#include <limits>

#include "model/weights.h"

namespace kvc {
namespace {

// Rows of the heads that the layer's heads read.
at::Tensor read_heads(const Fusion& fusion, std::size_t source, const at::Tensor& rows) {
  return fusion.heads.defined()
             ? rows.index_select(1, fusion.heads[static_cast<std::int64_t>(source)])
             : rows;
}

// (re + i im)(first + i second), pair by pair; `sign` -1: of the conjugate.
at::Tensor turn_pairs(const at::Tensor& factor, const ChannelPairs& pairs, const at::Tensor& x,
                      double sign) {
  const at::Tensor re = factor[0], im = factor[1] * sign;
  const at::Tensor first = x.index_select(-1, pairs.first),
                   second = x.index_select(-1, pairs.second);
  const at::Tensor turned =
      at::cat({re * first - im * second, im * first + re * second}, -1);  // [.., pairs | pairs]
  return turned.index_select(-1, at::argsort(at::cat({pairs.first, pairs.second})));
}

Fusion load_fusion(const Checkpoint& checkpoint, const KvPlan& plan, const FusedLayer& layer,
                   bool key, at::ScalarType dtype) {
  Fusion fusion;
  fusion.form = key || layer.form == FusionForm::kFull ? layer.form : FusionForm::kChannel;
  const at::Tensor weight =
      load_tensor(checkpoint, fused_tensor_name(layer.layer, key ? "key" : "value"),
                  fused_shape(plan, layer, key), dtype);
  fusion.weight =
      fusion.form == FusionForm::kFull ? weight : weight.unflatten(-1, {plan.num_kv_heads, -1});
  const std::vector<int>& heads = key ? layer.key_heads : layer.value_heads;
  if (!heads.empty()) {
    fusion.heads = at::tensor(heads, at::kLong).view({-1, plan.num_kv_heads});
  }
  return fusion;
}

}  // namespace

ChannelPairs channel_pairs(const ModelConfig& config, int layer) {
  const int rope = config.layer(layer).rope;
  const std::int64_t turned =
      rope < 0 ? 0 : config.ropes[static_cast<std::size_t>(rope)].rotary_dim / 2;
  const std::int64_t rest = config.head_dim / 2 - turned;
  const auto halves = [&](std::int64_t half) {
    return at::cat({at::arange(turned, at::kLong) + half * turned,
                    at::arange(rest, at::kLong) + 2 * turned + half * rest});
  };
  return {.first = halves(0), .second = halves(1), .num_turned = turned};
}

at::Tensor fuse(const Fusion& fusion, const ChannelPairs& pairs,
                const std::vector<at::Tensor>& sources) {
  if (fusion.form == FusionForm::kFull) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& source : sources) {
      rows.push_back(source.flatten(1));
    }
    return at::linear(at::cat(rows, 1), fusion.weight).view_as(sources.front());
  }
  at::Tensor sum;
  for (std::size_t source = 0; source < sources.size(); ++source) {
    const at::Tensor rows = read_heads(fusion, source, sources[source]);
    const at::Tensor factor = fusion.weight[static_cast<std::int64_t>(source)];
    const at::Tensor term =
        fusion.form == FusionForm::kChannel ? rows * factor : turn_pairs(factor, pairs, rows, 1);
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

at::Tensor fold_query(const Fusion& fusion, const ChannelPairs& pairs, std::int64_t source,
                      const at::Tensor& query) {
  const at::Tensor factor = fusion.weight[source];
  const std::int64_t num_kv_heads = factor.size(-2);
  const at::Tensor by_head = query.unflatten(1, {num_kv_heads, -1});  // [T, kv heads, queries, dh]
  const at::Tensor of_queries = factor.unsqueeze(-2);
  const at::Tensor folded = fusion.form == FusionForm::kChannel
                                ? by_head * of_queries
                                : turn_pairs(of_queries, pairs, by_head, -1);
  return folded.flatten(1, 2);
}

FusedWeights load_fused_weights(const Checkpoint& checkpoint, const KvPlan& plan,
                                const FusedLayer& layer, at::ScalarType dtype) {
  return {load_fusion(checkpoint, plan, layer, true, dtype),
          load_fusion(checkpoint, plan, layer, false, dtype)};
}

std::string fused_tensor_name(int layer, const char* part) {
  return fmt::format("kvconvert.fused.{}.{}", layer, part);
}

std::vector<std::int64_t> fused_shape(const KvPlan& plan, const FusedLayer& layer, bool key) {
  const auto sources =
      static_cast<std::int64_t>((key ? layer.key_sources : layer.value_sources).size());
  if (layer.form == FusionForm::kFull) {
    return {plan.kv_dim(), sources * plan.kv_dim()};
  }
  if (key && layer.form == FusionForm::kComplex) {
    return {sources, 2, plan.kv_dim() / 2};
  }
  return {sources, plan.kv_dim()};
}

bool can_read(const ModelConfig& config, int layer, int source) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const LayerSpec &target = config.layer(layer), &from = config.layer(source);
  return target.rope == from.rope && from.window.value_or(kNone) >= target.window.value_or(kNone);
}

}  // namespace kvc
