#include "runtime/attention/mla_attention.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/engine.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::mla_attention_test {
namespace {

using testing::random_ids;
using testing::random_normal;
using testing::tensors_close;

constexpr std::int64_t kHeads = 3;
constexpr MlaConfig kSizes{.q_lora_rank = 0,
                           .kv_lora_rank = 6,
                           .qk_nope_head_dim = 4,
                           .qk_rope_head_dim = 2,
                           .v_head_dim = 5};
constexpr double kScale = 0.7;

MlaWeights random_weights() {
  MlaWeights weights;
  weights.kv_b_proj.weight = random_normal({kHeads * (4 + 5), 6}, 1);
  return weights;
}

LatentRows random_rows(std::int64_t num_tokens) {
  return {.latent = random_normal({num_tokens, 6}, 2),
          .rotary_key = random_normal({num_tokens, 1, 2}, 3)};
}

// One query and one head at a time, from the definition.
at::Tensor reference(const MlaWeights& weights, const at::Tensor& query, const LatentRows& rows) {
  const std::int64_t num_queries = query.size(0), num_tokens = rows.latent.size(0);
  at::Tensor output = at::zeros({num_queries, kHeads, 5});
  for (std::int64_t i = 0; i < num_queries; ++i) {
    const std::int64_t seen = num_tokens - num_queries + i + 1;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const at::Tensor proj = weights.kv_b_proj.weight.narrow(0, 9 * head, 9);
      const at::Tensor expanded = rows.latent.narrow(0, 0, seen).matmul(proj.t());
      const at::Tensor keys =
          at::cat({expanded.narrow(1, 0, 4), rows.rotary_key.squeeze(1).narrow(0, 0, seen)}, 1);
      const at::Tensor probabilities = (keys.mv(query[i][head]) * kScale).softmax(0);
      output[i][head].copy_(expanded.narrow(1, 4, 5).t().mv(probabilities));
    }
  }
  return output.flatten(1);
}

TEST(MlaAttention, OnLatentsAndOnExpandedKeysIsTheSame) {
  const MlaWeights weights = random_weights();
  for (const auto& [num_queries, num_tokens] : {std::pair{1, 1}, {1, 9}, {4, 9}, {9, 9}}) {
    const at::Tensor query = random_normal({num_queries, kHeads, 6}, 4);
    const LatentRows rows = random_rows(num_tokens);
    const at::Tensor expected = reference(weights, query, rows);
    EXPECT_TRUE(
        tensors_close(attend_latents(kSizes, weights, kScale, query, rows), expected, 1e-5));
    EXPECT_TRUE(
        tensors_close(attend_expanded(kSizes, weights, kScale, query, rows), expected, 1e-5));
  }
}

// DeepSeek-V2: expanding costs 512 * 256 per token and head; latents cost 1088 - 320 more per query.
TEST(MlaAttention, ExpandsLatentsOnceForManyQueries) {
  const MlaConfig sizes{.q_lora_rank = 1536,
                        .kv_lora_rank = 512,
                        .qk_nope_head_dim = 128,
                        .qk_rope_head_dim = 64,
                        .v_head_dim = 128};
  EXPECT_TRUE(prefers_latents(sizes, 1));
  EXPECT_TRUE(prefers_latents(sizes, 170));
  EXPECT_FALSE(prefers_latents(sizes, 171));
}

TEST(MlaAttention, AnswersInTheQuerysType) {
  const MlaWeights weights = random_weights();
  MlaWeights rounded = weights;
  rounded.kv_b_proj.weight = weights.kv_b_proj.weight.to(at::kBFloat16);
  const at::Tensor query = random_normal({2, kHeads, 6}, 4).to(at::kBFloat16);
  LatentRows rows = random_rows(5);
  const at::Tensor expected = reference(weights, query.to(at::kFloat), rows);
  rows = {rows.latent.to(at::kBFloat16), rows.rotary_key.to(at::kBFloat16)};
  for (const auto& attend : {attend_latents, attend_expanded}) {
    const at::Tensor output = attend(kSizes, rounded, kScale, query, rows);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(tensors_close(output.to(at::kFloat), expected, 0.05 * testing::spread(expected)));
  }
}

Engine load(const std::filesystem::path& directory) {
  EngineOptions options;
  options.dtype = "float32";
  return Engine::load(directory, options);
}

// A latent of 16 and a rotary key of 4 in each of 4 layers.
TEST(MlaCache, HoldsTheLatentsThatThePlanCounts) {
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory / "m", {.model_type = "deepseek_v2"});
  const Engine engine = load(directory / "m");
  Sequence sequence = engine.new_sequence();
  engine.prefill({&sequence}, random_ids(1, 21, 96, 1), Engine::Rows::kLast);
  engine.extend({&sequence}, random_ids(1, 12, 96, 2), Engine::Rows::kLast);
  EXPECT_EQ(sequence.num_tokens(), 33);
  EXPECT_EQ(engine.pool().allocated_bytes(), 48 * 4 * (16 + 4) * 4);
  EXPECT_EQ(engine.pool().allocated_bytes(),
            plan_bytes(engine.plan(), 33, {}, KvDtype::kFloat32, 16));
  EXPECT_EQ(original_bytes(engine.plan(), 33, KvDtype::kFloat32), 33 * 4 * (16 + 4) * 4);
}

// Latents become codes, rotary keys stay as they are.
TEST(MlaCache, OfIntegersKeepsTheLogits) {
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory / "m", {.model_type = "deepseek_v2"});
  EngineOptions options;
  options.dtype = "float32";
  const Engine exact = Engine::load(directory / "m", options);
  options.kv_dtype = "int8";
  const Engine integer = Engine::load(directory / "m", options);
  const auto prompt = random_ids(1, 200, 96, 4), rest = random_ids(1, 45, 96, 5);
  at::Tensor logits[2];
  for (const Engine* engine : {&exact, &integer}) {
    Sequence sequence = engine->new_sequence();
    engine->prefill({&sequence}, prompt, Engine::Rows::kLast);
    logits[engine == &integer] = engine->extend({&sequence}, rest, Engine::Rows::kAll).front();
    EXPECT_EQ(
        engine->pool().allocated_bytes(),
        plan_bytes(engine->plan(), 245, {}, engine->kv_dtype(), engine->pool().page_tokens()));
    EXPECT_EQ(sequence.cache().plain_layer(0).num_codes(), engine == &integer ? 96 : 0);
  }
  EXPECT_TRUE(tensors_close(logits[1], logits[0], 0.01 * testing::spread(logits[0])));
}

// Angles that change with the length of the text apply to cached keys, too. One layer, as deeper ones
// read what earlier tokens were at their time.
TEST(MlaCache, FollowsRopeThatDependsOnTheLength) {
  const testing::TemporaryDirectory directory;
  const testing::SyntheticCheckpoint model{.model_type = "deepseek_v2", .num_layers = 1};
  testing::write_synthetic_checkpoint(directory / "m", model);
  Json config = testing::synthetic_config(model);
  config["max_position_embeddings"] = 16;
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 100.0}, {"factor", 4.0}};
  std::ofstream(directory / "m/config.json") << dump_json(config);
  const Engine engine = load(directory / "m");
  const Decoder decoder(Checkpoint::open(directory / "m"), at::kFloat);
  FullAttention attention(decoder.config(), decoder.rope());
  const std::vector<std::int64_t> ids = random_ids(1, 30, 96, 3).front();
  Sequence sequence = engine.new_sequence();
  engine.prefill({&sequence}, {{ids.begin(), ids.begin() + 10}}, Engine::Rows::kLast);
  for (std::ptrdiff_t end = 11; end <= 30; ++end) {
    const at::Tensor logits =
        engine.extend({&sequence}, {{ids[static_cast<std::size_t>(end) - 1]}}, Engine::Rows::kLast)
            .front();
    const at::Tensor expected = decoder.logits(
        decoder.forward(TokenBatch::of({{ids.begin(), ids.begin() + end}}), attention));
    EXPECT_TRUE(tensors_close(logits, expected.narrow(0, end - 1, 1), 1e-5)) << end;
  }
}

}  // namespace
}  // namespace kvc::mla_attention_test
