// The compressed cache against a second, direct computation: merged tokens' keys and values are written
// down from the definitions, and the continuation attends to them without any cache.
#include <gtest/gtest.h>

#include <numeric>

#include <array>
#include <cmath>
#include <memory>

#include "runtime/compression/latent_encoding.h"
#include "runtime/engine.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_close;

struct LayerRecord {
  at::Tensor hidden, key, value;  // key as finish_key leaves it; of the prompt
};

// Exact attention over the prompt that remembers what every layer saw.
class RecordingAttention : public Attention {
 public:
  explicit RecordingAttention(const Decoder& decoder)
      : decoder_(decoder), attention_(decoder.config(), decoder.rope()) {}
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    records.push_back(
        {input.hidden,
         finish_key(input.weights, decoder_.rope(), layer, input.key, batch.positions),
         input.value});
    raw_keys.push_back(input.key);
    return attention_.attend(layer, input, batch);
  }
  std::vector<LayerRecord> records;
  std::vector<at::Tensor> raw_keys;

 private:
  const Decoder& decoder_;
  FullAttention attention_;
};

// New tokens after given keys and values of the prompt.
class GivenAttention : public Attention {
 public:
  GivenAttention(const Decoder& decoder, std::vector<LayerRecord> prompt)
      : decoder_(decoder), prompt_(std::move(prompt)) {}
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const ModelConfig& config = decoder_.config();
    const LayerRecord& prompt = prompt_[static_cast<std::size_t>(layer)];
    const at::Tensor own =
        finish_key(input.weights, decoder_.rope(), layer, input.key, batch.positions);
    const at::Tensor key = at::cat({prompt.key, own}), value = at::cat({prompt.value, input.value});
    const at::Tensor query = decoder_.rope().rotate(layer, input.query, batch.positions);
    const std::int64_t repeat = config.num_heads / config.num_kv_heads;
    const at::Tensor scores =
        at::einsum("qhd,khd->hqk", {query, key.repeat_interleave(repeat, 1)}) *
        config.attention_scale;
    const at::Tensor mask = at::arange(key.size(0)).unsqueeze(0) > batch.positions.unsqueeze(1);
    const at::Tensor weights = at::softmax(scores.masked_fill(mask, -INFINITY), -1);
    return at::einsum("hqk,khd->qhd", {weights, value.repeat_interleave(repeat, 1)}).flatten(1);
  }

 private:
  const Decoder& decoder_;
  std::vector<LayerRecord> prompt_;
};

at::Tensor without_bias(const at::Tensor& rows, const at::Tensor& bias) {
  return bias.defined() ? rows.flatten(1) - bias : rows.flatten(1);
}

// One latent per token for the group, from the definitions.
at::Tensor merged_latents(const Decoder& decoder, const LatentGroup& group, MergeRule rule,
                          const GroupFactors& factors, const RecordingAttention& prompt) {
  std::vector<at::Tensor> stacked;
  at::Tensor weighted;
  for (int i = 0; i < group.num_layers; ++i) {
    const auto layer = static_cast<std::size_t>(group.first_layer + i);
    const LayerWeights& weights = decoder.layer(group.first_layer + i);
    stacked.push_back(without_bias(prompt.raw_keys[layer], weights.k_proj.bias));
    stacked.push_back(without_bias(prompt.records[layer].value, weights.v_proj.bias));
    if (rule == MergeRule::kMean) {
      const at::Tensor latent = at::linear(prompt.records[layer].hidden, factors.latent_proj);
      weighted = i == 0 ? latent : weighted + latent;
    }
  }
  return rule == MergeRule::kMean ? weighted / group.num_layers
                                  : at::linear(at::cat(stacked, 1), factors.encoder);
}

// What the cache should stand for when tokens first .. last - 1 are merged in every group.
std::vector<LayerRecord> expected_prompt(const Decoder& decoder, const KvPlan& plan,
                                         const LatentFactors& factors,
                                         const RecordingAttention& prompt, std::int64_t first,
                                         std::int64_t last) {
  std::vector<LayerRecord> expected = prompt.records;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const at::Tensor latents =
        merged_latents(decoder, plan.groups[g], plan.compression.rule, factors.groups[g], prompt);
    for (int i = 0; i < plan.groups[g].num_layers; ++i) {
      const int layer = plan.groups[g].first_layer + i;
      const Reconstruction& rebuild = factors.groups[g].merged_layers[static_cast<std::size_t>(i)];
      LayerRecord& record = expected[static_cast<std::size_t>(layer)];
      const LayerWeights& weights = decoder.layer(layer);
      const at::Tensor key =
          at::linear(latents, rebuild.key, weights.k_proj.bias).view_as(record.key);
      const at::Tensor rotated =
          finish_key(weights, decoder.rope(), layer, key, at::arange(key.size(0), at::kLong));
      const at::Tensor value =
          at::linear(latents, rebuild.value, weights.v_proj.bias).view_as(record.value);
      const auto replace = [&](const at::Tensor& all, const at::Tensor& merged) {
        return at::cat({all.narrow(0, 0, first), merged.narrow(0, first, last - first),
                        all.narrow(0, last, all.size(0) - last)});
      };
      record.key = replace(record.key, rotated);
      record.value = replace(record.value, value);
    }
  }
  return expected;
}

void expect_defined_cache(const SyntheticCheckpoint& model, MergeRule rule, std::int64_t rank) {
  CompressionSettings policy;
  policy.rule = rule;
  policy.target_kept_ratio = 1e-6;  // everything that may merge does
  policy.sink_tokens = 2;
  policy.window_tokens = 5;
  policy.block_tokens = 64;
  const KvPlan plan = testing::grouped_plan(model, 2, rank, policy);
  const TemporaryDirectory directory;
  testing::write_factored_checkpoint(directory.path(), model, plan);
  const std::vector<std::int64_t> prompt = testing::random_ids(1, 30, model.vocab_size, 1).front();
  const std::vector<std::int64_t> rest = testing::random_ids(1, 9, model.vocab_size, 2).front();

  const Engine engine = Engine::load(directory.path(), {});
  Sequence sequence = engine.new_sequence();
  engine.prefill({&sequence}, {prompt}, Engine::Rows::kLast);
  const at::Tensor actual = engine.extend({&sequence}, {rest}, Engine::Rows::kAll).front();
  EXPECT_EQ(sequence.cache().tokens().front().merged, 23);

  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  const Decoder decoder(checkpoint, at::kFloat);
  const LatentFactors factors =
      load_latent_factors(checkpoint, plan, decoder.config().hidden_size, at::kFloat);
  RecordingAttention recording(decoder);
  decoder.forward(TokenBatch::of({prompt}), recording);
  GivenAttention given(decoder, expected_prompt(decoder, plan, factors, recording, 2, 25));
  TokenBatch batch = TokenBatch::of({rest});
  batch.positions = batch.positions + 30;
  EXPECT_TRUE(tensors_close(actual, decoder.logits(decoder.forward(batch, given)), 2e-4))
      << model.model_type << " " << to_string(rule) << " rank " << rank;
}

TEST(MergedCache, IsWhatTheDefinitionSays) {
  for (const char* architecture : {"llama", "qwen2", "qwen3", "olmo2", "gemma3_text", "smollm3"}) {
    SyntheticCheckpoint model;
    model.model_type = architecture;
    model.attention_bias = true;
    for (const MergeRule rule : {MergeRule::kMean, MergeRule::kLs}) {
      for (const std::int64_t rank :
           {6, 20}) {  // below and above head_dim: values rebuilt, rank space
        expect_defined_cache(model, rule, rank);
      }
    }
  }
}

// Four layers in one group of rank 12, and pending tokens of given layer inputs.
class LatentEncoding : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_.model_type = GetParam();
    model_.attention_bias = true;
    CompressionSettings policy;
    policy.sink_tokens = 0;
    plan_ = testing::grouped_plan(model_, 4, kRank, policy);
    testing::write_factored_checkpoint(directory_.path(), model_, plan_);
    const Checkpoint checkpoint = Checkpoint::open(directory_.path());
    decoder_ = std::make_unique<Decoder>(checkpoint, at::kFloat);
    factors_ = load_latent_factors(checkpoint, plan_, model_.hidden_size, at::kFloat);
    latent_proj_ = load_tensor(checkpoint, "kvconvert.groups.0.latent_proj",
                               {kRank, model_.hidden_size}, at::kFloat);
  }

  // hidden[layer]: [n, hidden_size]. Also keeps the stacked keys and values in y_.
  EncodedTokens encode(const std::vector<at::Tensor>& hidden) {
    const std::int64_t count = hidden.front().size(0);
    const at::Tensor positions = at::arange(100, 100 + count, at::kLong);
    LatentStore store(plan_, 0, {std::make_shared<KvPool>(1), at::kFloat});
    std::vector<at::Tensor> stacked;
    for (int layer = 0; layer < 4; ++layer) {
      const at::Tensor& x = hidden[static_cast<std::size_t>(layer)];
      const LayerWeights& weights = decoder_->layer(layer);
      const at::Tensor key = weights.k_proj(x).view({count, model_.num_kv_heads, model_.head_dim});
      const at::Tensor value = weights.v_proj(x).view_as(key);
      stacked.push_back(without_bias(key, weights.k_proj.bias));
      stacked.push_back(without_bias(value, weights.v_proj.bias));
      store.append_pending(layer, finish_key(weights, decoder_->rope(), layer, key, positions),
                           value);
      store.hold(layer, key_rms(key, weights.k_norm));
    }
    y_ = at::cat(stacked, 1);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    return encode_pending({*decoder_, plan_, 0, factors_.groups[0], store}, rows, positions);
  }

  // ||y - B h||^2 / ||y||^2 per token.
  at::Tensor lost(const at::Tensor& latents) const {
    std::vector<at::Tensor> rebuilt;
    for (const Reconstruction& layer : factors_.groups[0].merged_layers) {
      rebuilt.push_back(at::linear(latents, layer.key));
      rebuilt.push_back(at::linear(latents, layer.value));
    }
    return (y_ - at::cat(rebuilt, 1)).square().sum(1) / y_.square().sum(1);
  }

  static constexpr std::int64_t kRank = 12;
  SyntheticCheckpoint model_;
  const TemporaryDirectory directory_;
  KvPlan plan_;
  std::unique_ptr<Decoder> decoder_;
  LatentFactors factors_;
  at::Tensor latent_proj_, y_;
};

// A token whose input is the same in all layers has one latent, whatever the rule: A x.
TEST_P(LatentEncoding, EqualInputsGiveTheLatentItself) {
  const at::Tensor hidden = testing::random_normal({7, model_.hidden_size}, 3);
  const EncodedTokens encoded = encode({hidden, hidden, hidden, hidden});
  EXPECT_TRUE(tensors_close(encoded.latents, at::linear(hidden, latent_proj_), 1e-4));
}

TEST_P(LatentEncoding, LeastSquaresLosesLessThanAnyWeighting) {
  std::vector<at::Tensor> hidden, latents;
  for (std::uint64_t layer = 0; layer < 4; ++layer) {
    hidden.push_back(testing::random_normal({20, model_.hidden_size}, 10 + layer));
    latents.push_back(at::linear(hidden.back(), latent_proj_));
  }
  const EncodedTokens encoded = encode(hidden);
  EXPECT_TRUE(tensors_close(encoded.scores, -lost(encoded.latents), 1e-5));
  for (const auto& weights : {std::array{0.25, 0.25, 0.25, 0.25}, std::array{1.0, 0.0, 0.0, 0.0},
                              std::array{0.1, 0.2, 0.3, 0.4}}) {
    at::Tensor mixed = at::zeros_like(latents.front());
    for (std::size_t layer = 0; layer < 4; ++layer) {
      mixed += latents[layer] * weights[layer];
    }
    EXPECT_TRUE((lost(encoded.latents) <= lost(mixed) + 1e-6).all().item<bool>());
  }
}

// Norms of each head, the same with 1 + w, and of whole projections.
INSTANTIATE_TEST_SUITE_P(KeyNorms, LatentEncoding,
                         ::testing::Values("qwen3", "gemma3_text", "olmo2"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace kvc
