// DeepSeek-V2's layout of grouped-query attention, from random weights and the statistics of random inputs.
#include <gmock/gmock.h>

#include <cmath>

#include "core/checkpoint.h"
#include "core/output.h"
#include "core/statistics_file.h"
#include "export/export.h"
#include "export/mla/mla_layer.h"
#include "export/mla/rotary_slots.h"
#include "model/decoder.h"
#include "model/mla.h"
#include "model/rope.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNumTokens = 64;

// A layer of weights, its inputs, and what kvcalibrate would say about them with all errors weighted alike.
struct Layer {
  explicit Layer(std::int64_t num_kv_heads) {
    SyntheticCheckpoint synthetic;
    synthetic.num_kv_heads = num_kv_heads;
    config = parse_model_config(synthetic_config(synthetic), "test");
    const std::int64_t hidden = config.hidden_size, kv_dim = config.kv_dim();
    x = random_normal({kNumTokens, hidden}, 1).to(at::kDouble);
    weights = {.query = random_normal({config.q_dim(), hidden}, 2).to(at::kDouble) / 4,
               .key = random_normal({kv_dim, hidden}, 3).to(at::kDouble) / 4,
               .value = random_normal({kv_dim, hidden}, 4).to(at::kDouble) / 4};
    const at::Tensor y = at::mm(x, at::cat({weights.key, weights.value}).t());
    statistics.mean = y.mean(0);
    const at::Tensor centred = y - statistics.mean;
    statistics.covariance = at::mm(centred.t(), centred) / static_cast<double>(kNumTokens);
    const at::Tensor alike = at::eye(config.head_dim, at::kDouble).repeat({num_kv_heads, 1, 1});
    statistics.query_metric = statistics.value_metric = alike;
    statistics.distance_weight = at::ones({config.num_heads, kNumDistances}, at::kDouble);
  }

  MlaShape shape(std::int64_t kv_lora_rank, std::int64_t rotary) const {
    for (const MlaShape& candidate : mla_shapes(config, 4)) {  // densities: the model's own first
      if (candidate.rope.rotary_dim == rotary) {
        return {kv_lora_rank, candidate.rope};
      }
    }
    ADD_FAILURE() << "no shape of " << rotary << " rotary channels";
    return {};
  }

  at::Tensor rotated(const at::Tensor& heads) const {
    return RopeTable(config.ropes.front(), at::kDouble).rotate(heads, at::arange(heads.size(0)));
  }

  at::Tensor original(const at::Tensor& inputs) const {
    const auto heads = [&](const at::Tensor& weight) {
      return at::mm(inputs, weight.t()).unflatten(1, {-1, config.head_dim});
    };
    return causal_attention(rotated(heads(weights.query)), rotated(heads(weights.key)),
                            heads(weights.value), {.scale = config.attention_scale});
  }

  // The export's attention, as the decoder reads the layout.
  at::Tensor exported(const at::Tensor& inputs, const MlaShape& shape) const {
    const MlaLayer layer = fit_mla_layer(weights, statistics, config, shape, at::kDouble);
    const MlaConfig mla{.kv_lora_rank = shape.kv_lora_rank,
                        .qk_nope_head_dim = config.head_dim,
                        .qk_rope_head_dim = shape.rope.rotary_dim,
                        .v_head_dim = config.head_dim};
    MlaWeights read;
    read.q_proj.weight = layer.q_proj;
    read.kv_a_proj = {.weight = layer.kv_a_proj, .bias = layer.kv_a_bias};
    read.kv_a_norm = {.weight = layer.kv_a_norm, .bias = {}, .eps = 1e-6};
    read.kv_b_proj.weight = layer.kv_b_proj;
    const MlaProjections projected = project_mla(mla, read, inputs);
    const RopeTable rope(shape.rope, at::kDouble);
    const at::Tensor positions = at::arange(inputs.size(0));
    const auto split =
        projected.query.split_with_sizes({mla.qk_nope_head_dim, mla.qk_rope_head_dim}, 2);
    const at::Tensor query = at::cat({split[0], rope.rotate(split[1].contiguous(), positions)}, 2);
    const MlaKeyValue kv =
        expand_latents(mla, read, projected.latent, rope.rotate(projected.rotary_key, positions));
    return causal_attention(query, kv.key, kv.value, {});
  }

  ModelConfig config;
  at::Tensor x;  // [kNumTokens, hidden_size]
  GroupedWeights weights;
  MlaStatistics statistics;
};

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return (actual - expected).norm().item<double>() / expected.norm().item<double>();
}

TEST(Mla, RotaryKeysOfRotatedKeysAreRotatedRotaryKeys) {
  const Layer layer(4);
  const MlaShape shape = layer.shape(16, layer.config.head_dim);
  const RotarySlots slots = choose_slots(layer.statistics, layer.config, shape.rope);
  for (std::size_t slot = 0; slot < slots.pair.size(); ++slot) {
    ASSERT_EQ(slots.pair[slot], static_cast<std::int64_t>(slot));
  }
  const at::Tensor key = at::mm(layer.x, layer.weights.key.t());
  const auto analysed = [&](const at::Tensor& keys) { return at::mm(keys, slots.analysis.t()); };
  const at::Tensor before = layer.rotated(key.unflatten(1, {-1, layer.config.head_dim})).flatten(1);
  const at::Tensor after = RopeTable(shape.rope, at::kDouble)
                               .rotate(analysed(key).unsqueeze(1), at::arange(kNumTokens))
                               .squeeze(1);
  EXPECT_LT(relative_error(after, analysed(before)), 1e-5);  // angles are float32
}

TEST(Mla, SlotsTakeThePrincipalComponents) {
  const Layer layer(4);
  const RotarySlots slots =
      choose_slots(layer.statistics, layer.config, layer.shape(16, layer.config.head_dim).rope);
  const at::Tensor key = at::mm(layer.x, layer.weights.key.t());
  const at::Tensor pairs =
      as_complex_pairs(key.unflatten(1, {4, layer.config.head_dim}), 2);  // [tokens, heads, pairs]
  const at::Tensor rotary = at::mm(key, slots.analysis.t()).square().mean(0);
  for (std::int64_t pair = 0; pair < layer.config.head_dim / 2; ++pair) {
    const at::Tensor own = pairs.select(2, pair);
    const at::Tensor moments = at::mm(own.t(), own.conj()) / static_cast<double>(kNumTokens);
    const double largest = at::linalg_eigvalsh(moments).max().item<double>();
    const double energy = (rotary[2 * pair] + rotary[2 * pair + 1]).item<double>();
    EXPECT_NEAR(energy, largest, 1e-9 * largest) << pair;
  }
}

TEST(Mla, OneKeyHeadIsReproduced) {
  const Layer layer(1);
  const std::int64_t head_dim = layer.config.head_dim;
  const MlaShape all = layer.shape(head_dim + 2, head_dim);  // values, the constant, one unused
  const at::Tensor expected = layer.original(layer.x);
  EXPECT_LT(relative_error(layer.exported(layer.x, all), expected), 1e-4);
  EXPECT_LT(mla_loss(layer.statistics, layer.config, all), 1e-9);
  const MlaShape fewer = layer.shape(head_dim / 2, head_dim);
  EXPECT_GT(relative_error(layer.exported(layer.x, fewer), expected), 1e-2);
}

TEST(Mla, LongLatentsAreNotScaled) {
  const Layer layer(1);
  const MlaShape all = layer.shape(layer.config.head_dim + 2, layer.config.head_dim);
  at::Tensor inputs = layer.x.clone();
  inputs[3].mul_(10);
  EXPECT_LT(relative_error(layer.exported(inputs, all), layer.original(inputs)), 2e-3);
}

TEST(Mla, SeveralHeadsLoseOnlyPositions) {
  const Layer layer(2);
  const std::int64_t kv_dim = layer.config.kv_dim();
  const MlaShape all = layer.shape(2 * kv_dim + 2, layer.config.head_dim);
  const at::Tensor first = layer.x.narrow(0, 0, 1);  // a token alone sees no distance
  EXPECT_LT(relative_error(layer.exported(first, all), layer.original(first)), 1e-4);
  const double error = relative_error(layer.exported(layer.x, all), layer.original(layer.x));
  EXPECT_GT(error, 1e-3);
  EXPECT_LT(error, 0.9);
}

TEST(Mla, LatentsLoseTheLeast) {
  const Layer layer(1);
  const std::int64_t head_dim = layer.config.head_dim, rank = 4;  // all keys are rotary
  const MlaShape shape = layer.shape(rank + 1, head_dim);
  const at::Tensor values =
      at::linalg_eigvalsh(layer.statistics.covariance.narrow(0, head_dim, head_dim)
                              .narrow(1, head_dim, head_dim));  // ascending
  const double dropped = values.narrow(0, 0, head_dim - rank).sum().item<double>();
  constexpr double kDamping = 1.01;  // of the metric, which is the identity
  EXPECT_NEAR(mla_loss(layer.statistics, layer.config, shape), kDamping * dropped, 1e-6 * dropped);
}

TEST(Mla, ShapesFillTheBytes) {
  const Layer layer(2);
  const std::int64_t plain = 2 * layer.config.kv_dim();
  for (const MlaShape& shape : mla_shapes(layer.config, 0.5)) {
    EXPECT_EQ(shape.width(), plain / 2);
    EXPECT_EQ(shape.kv_lora_rank % 2, 0);
    const at::Tensor frequencies = rope_inverse_frequencies(shape.rope);
    EXPECT_NEAR(frequencies[0].item<double>(), 1, 1e-6);
  }
  EXPECT_THAT(error_of([&] { mla_shapes(layer.config, 0.05); }),
              HasSubstr("use --kept-ratio 0.126 or more"));
}

struct Foreign {
  const char* model_type;
  void (*change)(SyntheticCheckpoint&);
  const char* part;
};

TEST(Mla, NamesWhatTheLayoutCannotHold) {
  const auto nothing = [](SyntheticCheckpoint&) {};
  const Foreign cases[] = {
      {"qwen2", nothing, "biases"},
      {"qwen3", nothing, "norms of queries and keys"},
      {"llama", [](SyntheticCheckpoint& made) { made.attention_bias = true; }, "biases"},
      {"mistral", [](SyntheticCheckpoint& made) { made.window = 16; }, "sliding windows"},
      {"llama", [](SyntheticCheckpoint& made) { made.hidden_size = 34; }, "not a multiple of 4"}};
  for (const auto& [model_type, change, part] : cases) {
    SyntheticCheckpoint synthetic;
    synthetic.model_type = model_type;
    change(synthetic);
    EXPECT_THAT(error_of([&] {
                  check_mla_source(parse_model_config(synthetic_config(synthetic), model_type),
                                   "where");
                }),
                ::testing::AllOf(HasSubstr(part), HasSubstr("where: --export mla")))
        << model_type << ": " << part;
  }
  SyntheticCheckpoint plain;
  plain.rope_type = "llama3";
  plain.mlp_bias = true;
  EXPECT_NO_THROW(check_mla_source(parse_model_config(synthetic_config(plain), "test"), "test"));
}

// A layout whose RoPE turns by other frequencies than the statistics were made with would fit nothing.
TEST(MlaConfig, HasTheRopeOfItsSource) {
  const TemporaryDirectory directory;
  for (const bool at_the_top : {false, true}) {
    const SyntheticCheckpoint synthetic{.rope_type = "llama3"};
    Json source = synthetic_config(synthetic);
    if (at_the_top) {  // where it wins, beside parameters that are not read
      source["rope_scaling"] = source["rope_parameters"];
      source["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 2.0}};
      source["original_max_position_embeddings"] = 32;
    }
    const std::filesystem::path model = directory.path() / std::to_string(at_the_top ? 1 : 0);
    write_synthetic_checkpoint(model, synthetic);
    std::filesystem::remove(model / "config.json");
    write_file(model / "config.json", source.dump());
    const Checkpoint checkpoint = Checkpoint::open(model);
    const ModelConfig config = read_model_config(checkpoint);
    const MlaShape shape = mla_shapes(config, 4).front();
    const RopeConfig found =
        parse_model_config(mla_config(checkpoint, config, shape), "test").ropes.front();
    EXPECT_EQ(found.type, RopeType::kLlama3);
    EXPECT_EQ(found.factor, 8);
    EXPECT_EQ(found.original_max_position_embeddings, at_the_top ? 32 : 64);
    EXPECT_EQ(found.theta, shape.rope.theta);
  }
}

}  // namespace
}  // namespace kvc::testing
