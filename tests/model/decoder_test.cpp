#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/weight_forecast.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_close;

TEST(RmsNorm, DividesByTheRootMeanSquare) {
  // mean square of (3, 4, 0, 0) is 25 / 4; times weights 1, 2, 1, 1.
  const at::Tensor x = at::tensor({3.0f, 4.0f, 0.0f, 0.0f});
  const at::Tensor weight = at::tensor({1.0f, 2.0f, 1.0f, 1.0f});
  EXPECT_TRUE(tensors_close(rms_norm(x, weight, 0), at::tensor({1.2, 3.2, 0.0, 0.0}), 1e-6));
  EXPECT_TRUE(tensors_close(rms_norm(x, weight, 6.25),
                            at::tensor({1.2, 3.2, 0.0, 0.0}) / std::sqrt(2.0), 1e-6));
}

// softmax(q k / sqrt(d)) v over the visible keys, query by query.
at::Tensor reference_attention(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const AttentionRule& rule) {
  const std::int64_t heads_per_kv_head = query.size(1) / key.size(1);
  at::Tensor output = at::empty_like(query);
  for (std::int64_t i = 0; i < query.size(0); ++i) {
    const std::int64_t first = rule.window ? std::max<std::int64_t>(0, i - *rule.window + 1) : 0;
    for (std::int64_t head = 0; head < query.size(1); ++head) {
      const at::Tensor keys = key.slice(0, first, i + 1).select(1, head / heads_per_kv_head);
      const at::Tensor values = value.slice(0, first, i + 1).select(1, head / heads_per_kv_head);
      at::Tensor scores =
          at::mv(keys, query[i][head]) * rule.scale.value_or(1 / std::sqrt(query.size(2)));
      if (rule.softcap != 0) {
        scores = at::tanh(scores / rule.softcap) * rule.softcap;
      }
      output[i][head].copy_(at::mv(values.t(), scores.softmax(0)));
    }
  }
  return output.flatten(1);
}

TEST(CausalAttention, EqualsTheDefinition) {
  for (const std::int64_t num_kv_heads : {1, 2, 4}) {
    for (const AttentionRule& rule :
         {AttentionRule{}, AttentionRule{.window = 1}, AttentionRule{.window = 5},
          AttentionRule{.window = 37}, AttentionRule{.scale = 0.7},
          AttentionRule{.window = 5, .scale = 0.7, .softcap = 1.2},
          AttentionRule{.softcap = 0.9}}) {
      const at::Tensor query = random_normal({37, 4, 24}, 1);
      const at::Tensor key = random_normal({37, num_kv_heads, 24}, 2);
      const at::Tensor value = random_normal({37, num_kv_heads, 24}, 3);
      EXPECT_TRUE(tensors_close(causal_attention(query, key, value, rule),
                                reference_attention(query, key, value, rule), 2e-6))
          << num_kv_heads << " KV heads, window " << rule.window.value_or(0) << ", cap "
          << rule.softcap;
    }
  }
}

TEST(CausalAttention, WindowsHoldAcrossBlocksOfQueries) {
  const at::Tensor query = random_normal({1100, 1, 8}, 1), key = random_normal({1100, 1, 8}, 2),
                   value = random_normal({1100, 1, 8}, 3);
  for (const std::int64_t window : {3, 700}) {
    EXPECT_TRUE(tensors_close(causal_attention(query, key, value, {.window = window}),
                              reference_attention(query, key, value, {.window = window}), 2e-6));
  }
}

class DifferentiableAttention : public ::testing::TestWithParam<double> {};

TEST_P(DifferentiableAttention, EqualsTheSlope) {
  const AttentionRule rule{.window = 4, .softcap = GetParam()};
  const auto attend = [&](const at::Tensor& key, const at::Tensor& value, const auto& attention) {
    const at::Tensor query = random_normal({9, 4, 8}, 1);
    return (attention(query, key, value, rule) * random_normal({9, 32}, 4)).sum();
  };
  at::Tensor key = random_normal({9, 2, 8}, 2).set_requires_grad(true);
  at::Tensor value = random_normal({9, 2, 8}, 3).set_requires_grad(true);
  attend(key, value, causal_attention).backward();
  const at::Tensor step = random_normal({9, 2, 8}, 5);
  const auto loss = [&](double offset) {
    return attend(key.detach().to(at::kDouble) + offset * step.to(at::kDouble),
                  value.detach().to(at::kDouble),
                  [](const at::Tensor& query, const auto&... rest) {
                    return reference_attention(query.to(at::kDouble), rest...);
                  })
        .template item<double>();
  };
  const double slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
  EXPECT_NEAR((key.grad() * step).sum().item<double>(), slope, 1e-4 * (1 + std::abs(slope)));
  EXPECT_GT(value.grad().abs().max().item<double>(), 0);
}

INSTANTIATE_TEST_SUITE_P(Softcaps, DifferentiableAttention, ::testing::Values(0.0, 1.5));

class EveryArch : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const SyntheticCheckpoint options{.model_type = GetParam(), .head_dim = 16, .window = 6};
    write_synthetic_checkpoint(directory_ / "m", options);
  }
  TemporaryDirectory directory_;
};

// Fused and separate projections, batched and single sequences: one model.
TEST_P(EveryArch, LayersApartEqualTheDecoder) {
  const Checkpoint checkpoint = Checkpoint::open(directory_ / "m");
  const Decoder decoder(checkpoint, at::kFloat);
  const ModelConfig& config = decoder.config();
  FullAttention attention(config, decoder.rope());
  const TokenBatch batch = TokenBatch::of(testing::random_ids(3, 11, config.vocab_size, 7));
  at::Tensor hidden_states = embed(config, decoder.weights().embed_tokens, batch.ids);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    hidden_states = run_layer(config, load_layer(checkpoint, config, layer, at::kFloat), layer,
                              hidden_states, batch, attention);
  }
  EXPECT_TRUE(tensors_close(decoder.forward(batch, attention), hidden_states, 1e-4));
}

TEST_P(EveryArch, ForecastsItsWeights) {
  const Checkpoint checkpoint = Checkpoint::open(directory_ / "m");
  const ModelConfig config = read_model_config(checkpoint);
  for (const WeightType type : {WeightType::kFloat, WeightType::kInt8}) {
    EXPECT_EQ(forecast_weight_bytes(config, at::kFloat, {}, type),
              Decoder(checkpoint, at::kFloat, {}, type).weight_bytes());
  }
}

TEST_P(EveryArch, CountsItsWeights) {
  const Checkpoint checkpoint = Checkpoint::open(directory_ / "m");
  EXPECT_EQ(Decoder(checkpoint, at::kFloat).weight_bytes(),
            4 * parse_model_config(checkpoint.config(), "config.json").num_parameters());
  const NormKind norm = find_arch(GetParam(), "test").norm;
  if (norm == NormKind::kRms || norm == NormKind::kLayer) {  // the others' norms stay wide
    EXPECT_EQ(Decoder(checkpoint, at::kHalf).weight_bytes(),
              2 * parse_model_config(checkpoint.config(), "config.json").num_parameters());
  }
}

TEST_P(EveryArch, Int8WeightsTakeLessAndStayClose) {
  const Checkpoint checkpoint = Checkpoint::open(directory_ / "m");
  const Decoder exact(checkpoint, at::kFloat), int8(checkpoint, at::kFloat, {}, WeightType::kInt8);
  const TokenBatch batch = TokenBatch::of(testing::random_ids(2, 11, exact.config().vocab_size, 7));
  const auto logits = [&](const Decoder& decoder) {
    FullAttention attention(decoder.config(), decoder.rope());
    return decoder.logits(decoder.forward(batch, attention));
  };
  const at::Tensor expected = logits(exact);
  // On average: a router may send a token elsewhere.
  EXPECT_LT((logits(int8) - expected).abs().mean().item<double>(),
            0.01 * testing::spread(expected));
  EXPECT_LT(int8.weight_bytes(), 0.65 * static_cast<double>(exact.weight_bytes()));
}

TEST_P(EveryArch, ReplacedProjectionsAreLeftOut) {
  if (find_arch(GetParam(), "test").latent_attention) {
    GTEST_SKIP() << "has no key and value projections";
  }
  const Decoder decoder(Checkpoint::open(directory_ / "m"), at::kFloat, {false, true, true, false});
  EXPECT_TRUE(decoder.layer(0).k_proj.weight.defined());
  EXPECT_FALSE(decoder.layer(1).k_proj.weight.defined());
  EXPECT_FALSE(decoder.layer(2).v_proj.weight.defined());
  EXPECT_EQ(decoder.layer(1).k_proj.bias.defined(), decoder.config().attention_bias);
  EXPECT_EQ(forecast_weight_bytes(decoder.config(), at::kFloat, {false, true, true, false}),
            decoder.weight_bytes());
}

std::vector<std::string> arch_names() {
  std::vector<std::string> names;
  for (const ArchSpec& arch : supported_archs()) {
    names.emplace_back(arch.model_type);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, EveryArch, ::testing::ValuesIn(arch_names()),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace kvc
