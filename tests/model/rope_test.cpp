#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::tensors_close;

const std::filesystem::path kGolden =
    std::filesystem::path(KVC_TEST_DATA) / "golden/rope.safetensors";

RopeConfig of_width(RopeConfig rope, std::int64_t rotary_dim) {
  rope.rotary_dim = rotary_dim;
  return rope;
}

RopeConfig llama31() {
  return {.type = RopeType::kLlama3,
          .theta = 500000,
          .factor = 8,
          .original_max_position_embeddings = 8192};
}

TEST(Rope, DefaultFrequenciesArePowersOfTheta) {
  const at::Tensor frequencies = rope_inverse_frequencies({.theta = 10000, .rotary_dim = 8});
  EXPECT_TRUE(tensors_close(frequencies, at::tensor({1.0, 0.1, 0.01, 0.001}), 1e-8));
}

TEST(Rope, LinearFrequenciesAreDividedByTheFactor) {
  const at::Tensor frequencies = rope_inverse_frequencies(
      {.type = RopeType::kLinear, .theta = 10000, .factor = 4, .rotary_dim = 128});
  const at::Tensor golden = testing::read_tensor(kGolden, "linear");
  EXPECT_TRUE(tensors_close(frequencies / golden, at::ones_like(golden), 2e-7));
}

TEST(Rope, Llama3FrequenciesEqualTransformers) {
  const at::Tensor frequencies = rope_inverse_frequencies(of_width(llama31(), 128));
  const at::Tensor golden = testing::read_tensor(kGolden, "llama3");
  EXPECT_TRUE(tensors_close(frequencies / golden, at::ones_like(golden), 2e-7));
  // Three regimes: kept, interpolated, divided by 8.
  const at::Tensor plain = rope_inverse_frequencies({.theta = 500000, .rotary_dim = 128});
  EXPECT_EQ(frequencies[0].item<float>(), plain[0].item<float>());
  EXPECT_FLOAT_EQ(frequencies[63].item<float>(), plain[63].item<float>() / 8);
}

struct ScaledRope {
  const char* golden;
  Json parameters;
  std::int64_t length = 0;
};

std::vector<ScaledRope> scaled_ropes() {
  Json longrope = {{"rope_type", "longrope"}, {"original_max_position_embeddings", 4096}};
  for (int pair = 0; pair < 64; ++pair) {
    longrope["short_factor"].push_back(1 + pair / 64.0);
    longrope["long_factor"].push_back(1 + pair / 2.0);
  }
  return {{"dynamic", {{"rope_type", "dynamic"}, {"factor", 4.0}}, 300000},
          {"yarn",
           {{"rope_type", "yarn"},
            {"rope_theta", 1e6},
            {"factor", 4.0},
            {"original_max_position_embeddings", 32768}}},
          {"yarn_mscale",
           {{"type", "yarn"},
            {"factor", 40},
            {"mscale", 0.9},
            {"mscale_all_dim", 0.5},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 16},
            {"truncate", false}}},
          {"longrope_short", longrope, 4096},
          {"longrope_long", longrope, 4097}};
}

TEST(Rope, ScaledFrequenciesEqualTransformers) {
  for (const ScaledRope& scaled : scaled_ropes()) {
    Json json = testing::synthetic_config({.head_dim = 128, .max_position_embeddings = 131072});
    json["rope_parameters"] = scaled.parameters;
    const RopeConfig rope = parse_model_config(json, "config.json").ropes.front();
    const at::Tensor golden = testing::read_tensor(kGolden, scaled.golden);
    const at::Tensor factor =
        testing::read_tensor(kGolden, std::string(scaled.golden) + ".attention_factor");
    EXPECT_TRUE(tensors_close(rope_inverse_frequencies(rope, scaled.length) / golden,
                              at::ones_like(golden), 5e-7))
        << scaled.golden;
    EXPECT_NEAR(rope.attention_factor, factor.item<double>(), 1e-12) << scaled.golden;
  }
}

// M = 100, f = 2, d = 4, L = 150: theta' = theta (2 * 1.5 - 1)^2 = 4 theta, and the second frequency
// theta'^-1/2 is half as high.
TEST(Rope, DynamicRopeFollowsTheLengthOfTheText) {
  const RopeTable rope({.type = RopeType::kDynamic,
                        .theta = 100,
                        .factor = 2,
                        .max_position_embeddings = 100,
                        .rotary_dim = 4},
                       at::kFloat);
  const at::Tensor x = at::tensor({0.0f, 1.0f, 0.0f, 0.0f}).view({1, 1, 4});
  const at::Tensor position = at::tensor({10}, at::kLong);
  const auto cosine = [&](std::int64_t length) {
    return rope.rotate(x, position, length).flatten()[1].item<double>();
  };
  EXPECT_NEAR(cosine(0), std::cos(1.0), 1e-6);
  EXPECT_NEAR(cosine(100), std::cos(1.0), 1e-6);
  EXPECT_NEAR(cosine(150), std::cos(0.5), 1e-6);
  EXPECT_NEAR(cosine(100), std::cos(1.0), 1e-6);
}

TEST(Rope, LongropeSwitchesBeyondTheOriginalLength) {
  const RopeTable rope({.type = RopeType::kLongRope,
                        .original_max_position_embeddings = 8,
                        .attention_factor = 2,
                        .short_factors = {1},
                        .long_factors = {4},
                        .rotary_dim = 2},
                       at::kFloat);
  const at::Tensor x = at::tensor({1.0f, 0.0f, 3.0f}).view({1, 1, 3});  // the third channel passes
  const at::Tensor position = at::tensor({1}, at::kLong);
  const auto rotated = [&](double angle) {
    return at::tensor({2 * std::cos(angle), 2 * std::sin(angle), 3.0});
  };
  EXPECT_TRUE(tensors_close(rope.rotate(x, position).flatten(), rotated(1), 1e-6));
  EXPECT_TRUE(tensors_close(rope.rotate(x, position, 8).flatten(), rotated(1), 1e-6));
  EXPECT_TRUE(tensors_close(rope.rotate(x, position, 9).flatten(), rotated(0.25), 1e-6));
  EXPECT_TRUE(tensors_close(rope.unrotate(rope.rotate(x, position), position), x, 1e-6));
}

TEST(Rope, InterleavedPairsAreNeighbours) {
  const RopeTable rope({.theta = 10000, .rotary_dim = 4, .interleaved = true}, at::kBFloat16);
  const at::Tensor x = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({1, 1, 4}).to(at::kBFloat16);
  const at::Tensor expected = at::tensor(
      {1 * std::cos(3.0) - 2 * std::sin(3.0), 2 * std::cos(3.0) + 1 * std::sin(3.0),
       3 * std::cos(0.03) - 4 * std::sin(0.03), 4 * std::cos(0.03) + 3 * std::sin(0.03)});
  EXPECT_TRUE(testing::tensors_identical(rope.rotate(x, at::tensor({3}, at::kLong)).flatten(),
                                         expected.to(at::kFloat).to(at::kBFloat16)));
}

TEST(Rope, LayersHaveTheirOwnTableOrNone) {
  ModelConfig config;
  config.ropes = {{.theta = 10000, .rotary_dim = 4}, {.theta = 100, .rotary_dim = 4}};
  config.layers = {
      {.window = {}, .rope = 0}, {.window = {}, .rope = 1}, {.window = {}, .rope = -1}};
  const RopeTables ropes(config, at::kFloat);
  const at::Tensor x = testing::random_normal({3, 2, 4}, 1);
  const at::Tensor positions = at::tensor({4, 5, 6}, at::kLong);
  for (const int layer : {0, 1}) {
    const RopeTable alone(config.ropes[static_cast<std::size_t>(layer)], at::kFloat);
    EXPECT_TRUE(
        testing::tensors_identical(ropes.rotate(layer, x, positions), alone.rotate(x, positions)));
  }
  EXPECT_TRUE(testing::tensors_identical(ropes.rotate(2, x, positions), x));
  EXPECT_TRUE(testing::tensors_identical(ropes.unrotate(2, x, positions), x));
}

TEST(Rope, TablesEqualTransformersFarOut) {
  const at::Tensor positions = testing::read_tensor(kGolden, "positions");
  const at::Tensor cos = testing::read_tensor(kGolden, "cos"),
                   sin = testing::read_tensor(kGolden, "sin");
  const RopeTable rope(of_width(llama31(), 128), at::kFloat);
  // A head of ones and then zeros rotates to (cos, sin).
  const at::Tensor x = at::cat({at::ones({5, 1, 64}), at::zeros({5, 1, 64})}, -1);
  const at::Tensor rotated = rope.rotate(x, positions).squeeze(1);
  EXPECT_TRUE(tensors_close(rotated.narrow(1, 0, 64), cos, 1e-6));
  EXPECT_TRUE(tensors_close(rotated.narrow(1, 64, 64), sin, 1e-6));
}

TEST(Rope, RotatesPairsOfChannelsHalfAHeadApart) {
  // theta 1e4, head_dim 4: position 3 turns pair (0, 2) by 3 and pair (1, 3) by 0.03.
  const RopeTable rope(of_width({}, 4), at::kFloat);
  const at::Tensor x = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({1, 1, 4});
  const at::Tensor expected =
      at::tensor({1 * std::cos(3.0) - 3 * std::sin(3.0), 2 * std::cos(0.03) - 4 * std::sin(0.03),
                  3 * std::cos(3.0) + 1 * std::sin(3.0), 4 * std::cos(0.03) + 2 * std::sin(0.03)});
  EXPECT_TRUE(tensors_close(rope.rotate(x, at::tensor({3}, at::kLong)).flatten(), expected, 1e-6));
}

TEST(Rope, UnrotateInvertsRotate) {
  const at::Tensor positions = at::tensor({0, 1, 77, 5000, 12}, at::kLong);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const RopeTable rope(of_width(llama31(), 16), dtype);
    const at::Tensor x = testing::random_normal({5, 3, 16}, 1).to(dtype);
    const at::Tensor back = rope.unrotate(rope.rotate(x, positions), positions);
    EXPECT_EQ(back.scalar_type(), at::kFloat);
    EXPECT_TRUE(tensors_close(back, x, dtype == at::kFloat ? 2e-6 : 5e-2));
  }
}

TEST(Rope, ForgetsNothingBetweenCalls) {
  const RopeTable rope(of_width({}, 8), at::kFloat);
  const at::Tensor x = testing::random_normal({2, 1, 8}, 2);
  const std::vector<at::Tensor> positions = {
      at::tensor({1, 2}, at::kLong), at::tensor({3, 4}, at::kLong), at::tensor({5, 6}, at::kLong)};
  for (const int which : {0, 1, 0, 2, 1, 1, 2, 0}) {
    const at::Tensor& asked = positions[static_cast<std::size_t>(which)];
    const RopeTable fresh(of_width({}, 8), at::kFloat);
    EXPECT_TRUE(testing::tensors_identical(rope.rotate(x, asked), fresh.rotate(x, asked)));
  }
  positions[0].add_(1);
  EXPECT_TRUE(testing::tensors_identical(rope.rotate(x, positions[0]),
                                         rope.rotate(x, at::tensor({2, 3}, at::kLong))));
}

TEST(Rope, KnowsEqualPositionsOfAnotherTensorUntilTheyChange) {
  const RopeTable rope(of_width({}, 8), at::kFloat);
  const at::Tensor x = testing::random_normal({3, 1, 8}, 2);
  const auto expect_as_fresh = [&](const at::Tensor& asked) {
    const RopeTable fresh(of_width({}, 8), at::kFloat);
    EXPECT_TRUE(testing::tensors_identical(rope.rotate(x, asked), fresh.rotate(x, asked)));
  };
  const at::Tensor first = at::arange(3);
  std::vector<at::Tensor> texts;
  for (int text = 0; text < 4; ++text) {
    texts.push_back(first.clone());
    expect_as_fresh(texts.back());
  }
  for (const at::Tensor& text : texts) {  // what is held becomes other positions
    text.add_(5);
    expect_as_fresh(first);
    expect_as_fresh(text);
    expect_as_fresh(first.clone());
  }
}

}  // namespace
}  // namespace kvc
