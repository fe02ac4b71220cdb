#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "convert/latent/merge_weights.h"
#include "core/error.h"
#include "core/progress.h"
#include "model/decoder.h"

namespace kvc {
namespace {

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
