#include "calibrate/attention_metric.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/statistics_file.h"
#include "model/sum_files.h"

namespace kvc {
namespace {

constexpr std::int64_t kQueryStride = 8;
constexpr std::int64_t kSliceElements = std::int64_t{1} << 20;  // of tokens' matrices at once

// Scores of some queries after the soft cap, and by how much they move with what is capped.
struct Scores {
  at::Tensor values, slope;  // [num_queries, num_keys]; slope undefined where it is 1
};

Scores scores_of(const ModelConfig& config, const at::Tensor& queries, const at::Tensor& keys) {
  const at::Tensor scores = at::mm(queries, keys.t()).mul_(config.attention_scale);
  if (config.score_softcap == 0) {
    return {scores, {}};
  }
  const at::Tensor capped = (scores / config.score_softcap).tanh_();
  return {capped * config.score_softcap, 1 - capped.square()};
}

void write_sum(Hdf5Writer& file, const std::string& path, const at::Tensor& sums,
               const std::vector<std::string>& dimensions) {
  KVC_CHECK(at::isfinite(sums).all().item<bool>(),
            "{}: not finite; does the checkpoint hold NaN or infinity?", path);
  write_tensor(file, path, sums, dimensions);
}

}  // namespace

AttentionMetric::AttentionMetric(const ModelConfig& config, const RopeTables& rope, int layer,
                                 const AttentionSums& sums, at::Device device)
    : config_(config),
      rope_(rope),
      layer_(layer),
      sums_(sums),
      key_metric_(at::zeros({config.num_kv_heads, config.head_dim, config.head_dim},
                            at::TensorOptions(device).dtype(at::kDouble))),
      value_metric_(at::zeros_like(key_metric_)),
      query_metric_(at::zeros_like(key_metric_)),
      distance_weight_(at::zeros({config.num_heads, kNumDistances}, key_metric_.options())) {}

void AttentionMetric::add(const LayerActivations& activations, std::int64_t sink_tokens) {
  if (!output_gram_.defined()) {
    const at::Tensor heads = activations.weights.o_proj.weight.to(at::kFloat)
                                 .unflatten(1, {config_.num_heads, config_.head_dim})
                                 .permute({1, 2, 0});  // [num_heads, head_dim, hidden_size]
    output_gram_ = at::bmm(heads, heads.transpose(1, 2));
  }
  const at::Tensor& positions = activations.batch.positions;
  const at::Tensor query =
      rotate_tokens(rope_, layer_, activations.query, activations.batch).to(at::kFloat);
  const at::Tensor key =
      finish_key(activations.weights, rope_, layer_, activations.key, positions).to(at::kFloat);
  const at::Tensor value = activations.value.to(at::kFloat);
  const at::Tensor plain = activations.query.to(at::kFloat);
  const std::int64_t group = config_.num_heads / config_.num_kv_heads;
  for (std::int64_t head = 0; head < config_.num_heads; ++head) {
    add_head(head, plain.select(1, head), query.select(1, head), key.select(1, head / group),
             value.select(1, head / group), positions, sink_tokens);
  }
}

void AttentionMetric::add_head(std::int64_t head, const at::Tensor& plain,
                               const at::Tensor& queries, const at::Tensor& keys,
                               const at::Tensor& values, const at::Tensor& positions,
                               std::int64_t sink_tokens) {
  const std::int64_t num_tokens = keys.size(0);
  const std::int64_t kv_head = head / (config_.num_heads / config_.num_kv_heads);
  if (num_tokens < kQueryStride) {
    return;  // no query is chosen
  }
  const at::TensorOptions tokens = keys.options().dtype(at::kLong);
  const at::Tensor chosen = at::arange(kQueryStride - 1, num_tokens, kQueryStride, tokens);
  const at::Tensor query = queries.index_select(0, chosen);
  const Scores scores = scores_of(config_, query, keys);
  const at::Tensor distance = chosen.unsqueeze(1) - at::arange(num_tokens, tokens);
  at::Tensor hidden = distance < 0;
  if (const auto window = attention_rule(config_, layer_).window) {
    hidden = hidden.logical_or(distance >= *window);
  }
  const at::Tensor weights = scores.values.masked_fill(hidden, -INFINITY).softmax(-1);
  const at::Tensor output = at::mm(weights, values);  // [num_queries, head_dim]
  at::Tensor squared = weights.square();
  squared.masked_fill_(distance <= 0, 0);
  squared.narrow(1, 0, std::min(sink_tokens, num_tokens)).zero_();

  const at::Tensor gram = output_gram_[head];
  const at::Tensor value_rows = at::mm(values, gram), output_rows = at::mm(output, gram);
  at::Tensor moved = (output_rows * output).sum(1, true) + (value_rows * values).sum(1) -
                     at::mm(output, value_rows.t()).mul_(2);  // |W_o (v_j - o_i)|^2
  // A score is (R k)' R q, where both rotations are scaled by the attention factor. Below, q is turned to R'R q by rotations
  // that are not.
  const double factor = std::pow(config_.attention_factor(layer_), 2);
  moved = moved.clamp_min_(0).mul_(squared).mul_(std::pow(config_.attention_scale * factor, 2));
  if (scores.slope.defined()) {
    moved.mul_(scores.slope.square());
  }
  const auto scale = static_cast<double>(kQueryStride);
  if (sums_.key) {
    key_metric_[kv_head].add_(key_sum(moved, query, positions), scale);
  }
  value_metric_[kv_head].add_(gram.to(at::kDouble),
                              scale * squared.sum(at::kDouble).item<double>());
  if (!sums_.reach) {
    return;
  }
  const at::Tensor weight = moved.to(at::kDouble) * scale;
  const at::Tensor wide = plain.index_select(0, chosen).to(at::kDouble);
  query_metric_[kv_head].add_(at::mm((wide * weight.sum(1, true)).t(), wide));
  distance_weight_[head].index_add_(0, distance.clamp(0, kNumDistances - 1).flatten(),
                                    weight.flatten());
}

at::Tensor AttentionMetric::key_sum(const at::Tensor& moved, const at::Tensor& query,
                                    const at::Tensor& positions) const {
  const std::int64_t num_tokens = moved.size(1), head_dim = query.size(1);
  const std::int64_t slice = std::max<std::int64_t>(1, kSliceElements / (head_dim * head_dim));
  const at::Tensor outer = (query.unsqueeze(2) * query.unsqueeze(1)).flatten(1);
  at::Tensor sum = at::zeros({head_dim, head_dim}, outer.options().dtype(at::kDouble));
  for (std::int64_t first = 0; first < num_tokens; first += slice) {
    const std::int64_t count = std::min(slice, num_tokens - first);
    const at::Tensor places = positions.narrow(0, first, count);
    const at::Tensor rotated =
        at::mm(moved.narrow(1, first, count).t(), outer).unflatten(1, {head_dim, head_dim});
    const at::Tensor half = rope_.unrotate(layer_, rotated, places).transpose(1, 2);
    sum.add_(rope_.unrotate(layer_, half.contiguous(), places).to(at::kDouble).sum(0));
  }
  return sum;
}

void AttentionMetric::write(Hdf5Writer& file) const {
  const std::string group = fmt::format("/attention/{}/", layer_);
  const std::vector<std::string> heads = {"KV head", "channel", "channel"};
  if (sums_.key) {
    write_sum(file, group + "key_metric", key_metric_, heads);
  }
  write_sum(file, group + "value_metric", value_metric_, heads);
  if (sums_.reach) {
    write_sum(file, group + "query_metric", query_metric_, heads);
    write_sum(file, group + "distance_weight", distance_weight_, {"head", "distance"});
  }
}

}  // namespace kvc
