// What a process takes beside its caches; tests/cli/process_memory.py compares it with the system's figures.
#include "runtime/memory/process_forecast.h"

#include <gtest/gtest.h>

#include "model/kernels/causal_attention.h"
#include "model/row_products.h"

namespace kvc {
namespace {

constexpr ReadingTypes kFloat{.num_threads = 3};
constexpr ReadingTypes kBFloat16{.compute = at::kBFloat16,
                                 .attention = at::kBFloat16,
                                 .product = at::kBFloat16,
                                 .num_threads = 3};

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = 8;
  config.intermediate_size = 32;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.attention_scale = 0.5f;
  config.ropes.resize(1);
  return config;
}

TEST(ProcessForecast, ReadingTakesHiddenStatesExactRowsAndAPiece) {
  // Hidden states, 2 * 8 + 3 * 32 numbers a token of a piece, keys and values; a quarter is spare.
  const ModelConfig config = small_config();
  EXPECT_EQ(reading_bytes(config, kBFloat16, {.all = 100, .longest = 60, .piece = 10}),
            (100 * 8 + 10 * 112 + 60 * 8) * 2 * 5 / 4);
  EXPECT_EQ(reading_bytes(config, kFloat, {.all = 60, .longest = 60, .piece = 60}),
            (60 * 8 + 60 * 112) * 4 * 5 / 4);
}

TEST(ProcessForecast, AttentionInFloat32TakesItsRowsAndBuffers) {
  ModelConfig config = small_config();
  config.num_heads = 32;  // attention's activations are the widest: 8 + 128 + 8 + 128 + 128 numbers
  ReadingTypes types = kBFloat16;
  types.attention = at::kFloat;
  // Queries, and outputs over earlier pieces and over this one.
  EXPECT_EQ(reading_bytes(config, types, {.all = 60, .longest = 60, .piece = 10}),
            (60 * 8 * 2 + 10 * 400 * 2 + 10 * 3 * 128 * 4 + 60 * 8 * 4) * 5 / 4);
  // Keys and values, too.
  EXPECT_EQ(reading_bytes(config, types, {.all = 60, .longest = 60, .piece = 60}),
            (60 * 8 * 2 + 60 * 400 * 2 + 60 * (2 * 128 + 8) * 4) * 5 / 4);
  const std::int64_t buffers = std::int64_t{9} << 19;
  EXPECT_EQ(reading_bytes(config, types, {.all = 100, .longest = 100, .piece = 100}),
            (100 * 8 * 2 + 100 * 400 * 2 + 100 * (2 * 128 + 8) * 4) * 5 / 4 + 3 * buffers);
}

TEST(ProcessForecast, ProductsInFloat32TakeAPartOfTheWeightAndRows) {
  const ModelConfig config = small_config();
  ReadingTypes types = kBFloat16;
  types.product = at::kFloat;
  const PromptSizes prompts{.all = 60, .longest = 60, .piece = 60};
  EXPECT_EQ(widened_product_bytes(60, 8, 32), (8 * 32 + 60 * (8 + 32)) * 4);
  EXPECT_EQ(reading_bytes(config, types, prompts),
            reading_bytes(config, kBFloat16, prompts) + (8 * 32 + 60 * 40) * 4 * 5 / 4);
  // 512 rows and 1048576 weights at a time.
  EXPECT_EQ(widened_product_bytes(2000, 4096, 11008), (256 * 4096 + 512 * (4096 + 256)) * 4);
}

TEST(ProcessForecast, TypesAreThoseOfTheProcessor) {
  ModelConfig config = small_config();
  EXPECT_EQ(reading_types(config, at::kFloat).attention, at::kFloat);
  EXPECT_EQ(reading_types(config, at::kFloat).product, at::kFloat);
  const ReadingTypes narrow = reading_types(config, at::kBFloat16);
  EXPECT_EQ(narrow.compute, at::kBFloat16);
  EXPECT_EQ(narrow.product == at::kBFloat16, has_fast_products(at::kBFloat16));
  EXPECT_EQ(narrow.attention == at::kBFloat16, causal_attention_is_fast(config.head_dim));
  config.attention_scale = -1;  // which that attention does not take
  EXPECT_EQ(reading_types(config, at::kBFloat16).attention, at::kFloat);
}

TEST(ProcessForecast, ActivationsOfAttentionMayBeTheWidest) {
  ModelConfig config = small_config();
  config.num_heads = 32;  // hidden states, queries, keys and values, turned queries, and the output
  EXPECT_EQ(reading_bytes(config, kFloat, {.all = 4, .longest = 4, .piece = 4}),
            (4 * 8 + 4 * (8 + 128 + 8 + 128 + 128)) * 4 * 5 / 4);
}

TEST(ProcessForecast, AnglesAreOfKeysStoredBeforeRope) {
  const ModelConfig config = small_config();
  KvPlan plan = plain_plan(2, 1, 4);
  EXPECT_EQ(angle_bytes(config, plan, KvDtype::kBFloat16, 8000), 0);
  EXPECT_EQ(angle_bytes(config, plan, KvDtype::kInt8, 8000), (8000 + 1000) * 4 * 4);
  plan.coded = {{.part = CodedParts::kKeys, .rotated = true}, {.part = CodedParts::kValues}};
  EXPECT_EQ(angle_bytes(config, plan, KvDtype::kBFloat16, 8000), 0);
  plan.coded = {{.part = CodedParts::kKeys}};
  EXPECT_EQ(angle_bytes(config, plan, KvDtype::kBFloat16, 8000), (8000 + 1000) * 4 * 4);
}

TEST(ProcessForecast, PoliciesTakeScoresAndKeysOfOneHead) {
  constexpr std::int64_t kBuffers = std::int64_t{5} << 20;
  ModelConfig config = small_config();
  config.num_kv_heads = 2;
  config.num_heads = 6;
  const KvPlan plan = plain_plan(2, 2, 4);
  const auto bytes = [&](const char* policy, std::int64_t tokens) {
    return compression_bytes(config, plan, parse_token_policy(policy),
                             {.all = tokens, .longest = tokens, .piece = 10});
  };
  EXPECT_EQ(compression_bytes(config, plan, {}, {.all = 60, .longest = 60, .piece = 10}), 0);
  // Three query heads: 4 bytes a score, a byte for what the query does not see, and keys of 4 channels.
  EXPECT_EQ(bytes("h2o:budget=16", 60), kBuffers + 60 * (60 * 13 + 16));
  EXPECT_EQ(bytes("snapkv:budget=64", 200), kBuffers + 200 * (32 * 13 + 16));
  // 4194304 scores of all heads at once would be those of 69 queries.
  EXPECT_EQ(bytes("h2o:budget=16", 10000), kBuffers + 10000 * (69 * 13 + 16));
  // One query at least, and merging takes the keys of both heads.
  EXPECT_EQ(bytes("h2o:budget=16", 8000000), kBuffers + 8000000 * (13 + 16));
  EXPECT_EQ(bytes("zeromerge:budget=16", 8000000), kBuffers + 8000000 * 2 * 16);
}

TEST(ProcessForecast, CompressingTakesBuffersOfProducts) {
  const PromptSizes prompts{.all = 100, .longest = 60, .piece = 10};
  KvPlan plan = plain_plan(2, 1, 4);
  EXPECT_EQ(compression_bytes(small_config(), plan, {}, prompts), 0);
  plan.layers = {KvSource::kCoded, KvSource::kPlain};
  EXPECT_EQ(compression_bytes(small_config(), plan, {}, prompts), std::int64_t{5} << 20);
}

TEST(ProcessForecast, DirectionsOfARequestTakeFiveMatrices) {
  KvPlan plan = plain_plan(2, 1, 4);
  plan.layers.assign(2, KvSource::kLatent);
  LatentGroup& group = plan.groups.emplace_back();
  group.num_layers = 2;
  group.split_kv = true;
  group.basis = LatentBasis::kCalibrated;
  const std::int64_t calibrated = compression_bytes(small_config(), plan, {}, {});
  group.basis = LatentBasis::kRequest;
  EXPECT_EQ(compression_bytes(small_config(), plan, {}, {}), calibrated + 5 * 8 * 8 * 8);
  group.split_kv = false;
  EXPECT_EQ(compression_bytes(small_config(), plan, {}, {}), calibrated + 5 * 16 * 16 * 8);
}

}  // namespace
}  // namespace kvc
