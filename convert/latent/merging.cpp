#include "convert/latent/merging.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/progress.h"
#include "model/decoder.h"

namespace kvc {
namespace {

constexpr double kSmallestWeight = 1e-3;  // relative to the mean of a layer's keys or values

constexpr std::size_t kMaxSequences = 10;

// Full attention, except that one layer's keys are noise.
class NoisyKeys : public Attention {
 public:
  NoisyKeys(const Decoder& decoder, int noisy_layer, std::uint64_t seed)
      : config_(decoder.config()),
        rope_(decoder.rope()),
        full_(decoder.config(), decoder.rope()),
        noisy_layer_(noisy_layer),
        generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    if (layer != noisy_layer_) {
      return full_.attend(layer, input, batch);
    }
    const at::Tensor query = rotate_tokens(rope_, layer, input.query, batch);
    const at::Tensor key =
        at::randn(input.key.sizes(), generator_, at::kFloat).to(input.key.scalar_type());
    std::vector<at::Tensor> outputs;
    std::int64_t begin = 0;
    for (const std::int64_t length : batch.lengths) {
      outputs.push_back(
          causal_attention(query.narrow(0, begin, length), key.narrow(0, begin, length),
                           input.value.narrow(0, begin, length), attention_rule(config_, layer)));
      begin += length;
    }
    return at::cat(outputs);
  }

 private:
  const ModelConfig& config_;
  const RopeTables& rope_;
  FullAttention full_;
  int noisy_layer_;
  at::Generator generator_;
};

// exp of the mean next-token NLL. Layer -1: no noise.
double perplexity(const Decoder& decoder, const TokenSet& tokens, int noisy_layer,
                  std::uint64_t seed) {
  NoisyKeys attention(decoder, noisy_layer, seed);
  double nll = 0;
  std::int64_t scored = 0;
  for (std::size_t i = 0; i < std::min(tokens.sequences.size(), kMaxSequences); ++i) {
    const auto length = static_cast<std::int64_t>(tokens.sequences[i].size());
    if (length < 2) {
      continue;
    }
    const TokenBatch batch = TokenBatch::of({tokens.sequences[i]});
    const at::Tensor logits =
        decoder.logits(decoder.forward(batch, attention).narrow(0, 0, length - 1));
    const at::Tensor labels = batch.ids.narrow(0, 1, length - 1).unsqueeze(1);
    nll -= at::log_softmax(logits, 1).gather(1, labels).sum(at::kDouble).item<double>();
    scored += length - 1;
  }
  KVC_CHECK(scored > 0, "--merge sensitivity: no calibration sequence has two tokens");
  return std::exp(nll / static_cast<double>(scored));
}

}  // namespace

at::Tensor ls_encoder(const GroupFactorization& factors, const at::Tensor& weights) {
  const at::Tensor root = factors.singular_values.sqrt();
  // U = B diag(s)^-1/2 is orthonormal, so U^T F U is as well conditioned as F itself.
  const at::Tensor u = factors.reconstruct_proj.div(root);
  if (!weights.defined()) {
    return u.div(root).t().contiguous();
  }
  const at::Tensor weighted = u.mul(weights.unsqueeze(1));  // F U
  const at::Tensor normal = at::linalg_cholesky(at::mm(u.t(), weighted));
  return at::cholesky_solve(weighted.t().contiguous(), normal).div_(root.unsqueeze(1));
}

at::Tensor ls_channel_weights(const LatentGroup& group, const std::vector<double>& fisher_channel,
                              std::int64_t kv_dim) {
  const std::int64_t blocks = 2 * group.num_layers;
  const auto begin = static_cast<std::size_t>(2 * group.first_layer * kv_dim);
  const auto count = static_cast<std::size_t>(blocks * kv_dim);
  KVC_CHECK(begin + count <= fisher_channel.size(), "Fisher weights: {} channels, {} needed",
            fisher_channel.size(), begin + count);
  at::Tensor weights = at::empty({blocks, kv_dim}, at::kDouble);
  std::copy_n(fisher_channel.begin() + static_cast<std::ptrdiff_t>(begin), count,
              weights.mutable_data_ptr<double>());
  const double overall = weights.mean().item<double>();
  if (!(overall > 0)) {
    return at::ones({blocks * kv_dim}, at::kDouble);
  }
  const at::Tensor floor = weights.mean(1, true).mul(kSmallestWeight);
  return at::maximum(weights, floor.clamp_min(kSmallestWeight * kSmallestWeight * overall))
      .div(overall)
      .flatten();
}

std::vector<double> merge_weights(const LatentGroup& group,
                                  const std::vector<double>& layer_scores) {
  const auto first = static_cast<std::size_t>(group.first_layer);
  const auto count = static_cast<std::size_t>(group.num_layers);
  KVC_CHECK(first + count <= layer_scores.size(), "merge weights: {} layer scores for layers to {}",
            layer_scores.size(), first + count - 1);
  double sum = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    KVC_CHECK(layer_scores[i] >= 0, "merge weights: layer {} has score {}", i, layer_scores[i]);
    sum += layer_scores[i];
  }
  std::vector<double> weights;
  for (std::size_t i = first; i < first + count; ++i) {
    weights.push_back(sum > 0 ? layer_scores[i] / sum : 1.0 / static_cast<double>(count));
  }
  return weights;
}

std::vector<double> sensitivity_scores(const Checkpoint& checkpoint, const TokenSet& tokens,
                                       std::uint64_t seed) {
  const c10::NoGradGuard no_grad;
  const Decoder decoder(checkpoint, storage_dtype(checkpoint, read_model_config(checkpoint)));
  const double intact = perplexity(decoder, tokens, -1, seed);
  Progress progress("layer sensitivity", decoder.config().num_layers);
  std::vector<double> scores;
  for (int layer = 0; layer < decoder.config().num_layers; ++layer) {
    scores.push_back(std::max(0.0, perplexity(decoder, tokens, layer, seed) - intact));
    progress.advance();
  }
  return scores;
}

}  // namespace kvc
