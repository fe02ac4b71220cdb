#include "model/moe.h"

#include <gmock/gmock.h>
#include "model/config_parts.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::random_normal;
using testing::tensors_close;

at::Tensor silu(const at::Tensor& x) { return at::silu(x); }

// A router whose only token has probabilities 1/8, 2/8, 4/8 and 1/8.
struct OneToken {
  at::Tensor x = at::ones({1, 1});
  at::Tensor router = at::tensor({1.0f, 2.0f, 4.0f, 1.0f}).log().unsqueeze(1);
};

at::Tensor experts(const std::vector<std::int64_t>& of_one_token) {
  return at::tensor(of_one_token).unsqueeze(0);
}

MoeConfig four_experts() {
  MoeConfig config;
  config.num_experts = 4;
  config.experts_per_token = 2;
  return config;
}

TEST(Moe, RoutesToTheMostProbableExperts) {
  const OneToken token;
  const Routing routing = route(four_experts(), token.router, token.x);
  EXPECT_TRUE(at::equal(routing.experts, experts({2, 1})));
  EXPECT_TRUE(tensors_close(routing.weights, at::tensor({0.5f, 0.25f}).unsqueeze(0), 1e-6));
}

TEST(Moe, NormalizesAndScalesTheirProbabilities) {
  const OneToken token;
  MoeConfig config = four_experts();
  config.normalize = true;
  config.routed_scale = 3;
  EXPECT_TRUE(tensors_close(route(config, token.router, token.x).weights,
                            at::tensor({2.0f, 1.0f}).unsqueeze(0), 1e-6));
}

// The second group has the best expert; without groups expert 1 would be chosen before expert 3.
TEST(Moe, ChoosesFromTheBestGroupsOnly) {
  const OneToken token;
  MoeConfig config = four_experts();
  config.num_groups = 2;
  const Routing routing = route(config, token.router, token.x);
  EXPECT_TRUE(at::equal(routing.experts, experts({2, 3})));
  EXPECT_TRUE(tensors_close(routing.weights, at::tensor({0.5f, 0.125f}).unsqueeze(0), 1e-6));
}

struct Block {
  MoeConfig config;
  MoeWeights weights;
};

Block random_block(bool shared) {
  constexpr std::int64_t kExperts = 6, kHidden = 8, kSize = 5, kShared = 7;
  Block block;
  block.config.num_experts = kExperts;
  block.config.experts_per_token = 2;
  block.config.normalize = true;
  block.weights.router = random_normal({kExperts, kHidden}, 1);
  block.weights.router[4] -= 100 * at::ones({kHidden});  // chosen for negative sums only
  block.weights.gate_up.weight = random_normal({kExperts, 2 * kSize, kHidden}, 2);
  block.weights.down.weight = random_normal({kExperts, kHidden, kSize}, 3);
  if (shared) {
    block.config.shared_size = kShared;
    block.weights.shared_gate_up = {random_normal({2 * kShared, kHidden}, 4),
                                    random_normal({2 * kShared}, 5)};
    block.weights.shared_down = {random_normal({kHidden, kShared}, 6), random_normal({kHidden}, 7)};
    block.weights.shared_gate = random_normal({1, kHidden}, 8);
  }
  return block;
}

at::Tensor mlp(const at::Tensor& gate_up, const at::Tensor& down, const at::Tensor& x) {
  const std::vector<at::Tensor> parts = at::mv(gate_up, x).chunk(2);
  return at::mv(down, at::silu(parts[0]) * parts[1]);
}

// Token by token, expert by expert.
at::Tensor run_reference(const Block& block, const at::Tensor& x) {
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& token : x.unbind()) {
    const Routing routing = route(block.config, block.weights.router, token.unsqueeze(0));
    at::Tensor sum = at::zeros_like(token);
    for (std::int64_t i = 0; i < block.config.experts_per_token; ++i) {
      const auto expert = routing.experts[0][i].item<std::int64_t>();
      sum = sum + routing.weights[0][i] * mlp(block.weights.gate_up.weight[expert],
                                              block.weights.down.weight[expert], token);
    }
    if (block.config.shared_size > 0) {
      const Linear& up = block.weights.shared_gate_up;
      const std::vector<at::Tensor> parts = (at::mv(up.weight, token) + up.bias).chunk(2);
      const Linear& down = block.weights.shared_down;
      sum = sum + at::sigmoid(at::dot(block.weights.shared_gate[0], token)) *
                      (at::mv(down.weight, at::silu(parts[0]) * parts[1]) + down.bias);
    }
    outputs.push_back(sum);
  }
  return at::stack(outputs);
}

class MoeBlock : public ::testing::TestWithParam<bool> {};

TEST_P(MoeBlock, EqualsTokensOneByOne) {
  const Block block = random_block(GetParam());
  for (const std::int64_t num_tokens : {1, 2, 37}) {
    const at::Tensor x = random_normal({num_tokens, 8}, 9);
    EXPECT_TRUE(tensors_close(run_experts(block.config, block.weights, x, silu),
                              run_reference(block, x), 2e-5));
  }
}

TEST_P(MoeBlock, HasTheGradientOfTokensOneByOne) {
  const Block block = random_block(GetParam());
  const auto gradient = [&](const auto& run) {
    const at::Tensor x = random_normal({40, 8}, 10).set_requires_grad(true);
    run(x).square().sum().backward();
    return x.grad();
  };
  const at::Tensor expected =
      gradient([&](const at::Tensor& x) { return run_reference(block, x); });
  const at::Tensor actual = gradient(
      [&](const at::Tensor& x) { return run_experts(block.config, block.weights, x, silu); });
  EXPECT_TRUE(tensors_close(actual, expected, 1e-5 * testing::spread(expected)));
}

INSTANTIATE_TEST_SUITE_P(SharedExperts, MoeBlock, ::testing::Bool());

std::optional<MoeConfig> resolve(const Json& json, ExpertStyle style, int num_layers = 4) {
  const std::string subject = "config.json";
  return resolve_moe(ConfigReader(json, subject), style, num_layers, 48);
}

std::string refusal(const Json& json, ExpertStyle style) {
  return error_of([&] { resolve(json, style); });
}

TEST(MoeConfig, OfMixtralTakesItsDefaultsAndEitherSpelling) {
  const MoeConfig absent = resolve(Json::object(), ExpertStyle::kMixtral).value();
  EXPECT_EQ(absent.num_experts, 8);
  EXPECT_EQ(absent.experts_per_token, 2);
  EXPECT_EQ(absent.expert_size, 48);
  EXPECT_TRUE(absent.normalize);
  EXPECT_EQ(resolve({{"num_local_experts", 5}}, ExpertStyle::kMixtral)->num_experts, 5);
  EXPECT_EQ(resolve({{"num_experts", 6}}, ExpertStyle::kMixtral)->num_experts, 6);
}

TEST(MoeConfig, OfQwenSaysWhichLayersHaveExperts) {
  const Json json = {{"num_local_experts", 16},  {"decoder_sparse_step", 2},
                     {"mlp_only_layers", {3}},   {"norm_topk_prob", true},
                     {"num_experts_per_tok", 4}, {"moe_intermediate_size", 24}};
  const MoeConfig moe = resolve(json, ExpertStyle::kQwen, 6).value();
  EXPECT_THAT(moe.layers, ElementsAre(false, true, false, false, false, true));
  EXPECT_EQ(moe.num_experts, 16);
  EXPECT_EQ(moe.expert_size, 24);
  EXPECT_TRUE(moe.normalize);
  EXPECT_FALSE(resolve({{"num_experts", 0}}, ExpertStyle::kQwen).has_value());
}

TEST(MoeConfig, OfQwen2HasAGatedSharedExpert) {
  const MoeConfig moe =
      resolve({{"shared_expert_intermediate_size", 40}}, ExpertStyle::kQwen2).value();
  EXPECT_EQ(moe.num_experts, 60);
  EXPECT_EQ(moe.shared_size, 40);
  EXPECT_TRUE(moe.shared_gate);
}

Json deepseek() {
  return {{"n_routed_experts", 8},         {"n_shared_experts", 2},
          {"num_experts_per_tok", 3},      {"n_group", 4},
          {"moe_intermediate_size", 10},   {"topk_group", 2},
          {"routed_scaling_factor", 16.0}, {"topk_method", "group_limited_greedy"},
          {"first_k_dense_replace", 1}};
}

TEST(MoeConfig, OfDeepseekHasGroupsAndSharedExperts) {
  const MoeConfig moe = resolve(deepseek(), ExpertStyle::kDeepseek).value();
  EXPECT_THAT(moe.layers, ElementsAre(false, true, true, true));
  EXPECT_EQ(moe.shared_size, 20);
  EXPECT_EQ(moe.num_groups, 4);
  EXPECT_EQ(moe.groups_per_token, 2);
  EXPECT_EQ(moe.routed_scale, 16);
  EXPECT_TRUE(moe.float_router);
  Json json = deepseek();
  json["topk_method"] = "greedy";
  json["moe_layer_freq"] = 2;
  json["n_shared_experts"] = nullptr;
  const MoeConfig greedy = resolve(json, ExpertStyle::kDeepseek).value();
  EXPECT_THAT(greedy.layers, ElementsAre(false, false, true, false));
  EXPECT_EQ(greedy.num_groups, 1);
  EXPECT_EQ(greedy.shared_size, 0);
}

TEST(MoeConfig, OfDeepseekMayBeDense) {
  Json json = deepseek();
  json["first_k_dense_replace"] = 4;
  EXPECT_FALSE(resolve(json, ExpertStyle::kDeepseek).has_value());
  json = deepseek();
  json["n_routed_experts"] = nullptr;
  EXPECT_FALSE(resolve(json, ExpertStyle::kDeepseek).has_value());
}

TEST(MoeConfig, RefusesWhatItDoesNotCompute) {
  const auto with = [](const char* key, const Json& value) {
    Json json = deepseek();
    json[key] = value;
    return refusal(json, ExpertStyle::kDeepseek);
  };
  EXPECT_EQ(refusal(deepseek(), ExpertStyle::kDeepseek), "");
  EXPECT_THAT(with("topk_method", "noaux_tc"), HasSubstr("supported: greedy"));
  EXPECT_THAT(with("scoring_func", "sigmoid"), HasSubstr("only \"softmax\""));
  EXPECT_THAT(with("norm_topk_prob", true), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(with("n_group", 3), HasSubstr("evenly"));
  EXPECT_THAT(with("num_experts_per_tok", 5), HasSubstr("among 4 experts only"));
  EXPECT_THAT(with("num_experts_per_tok", nullptr), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(
      refusal({{"num_local_experts", 2}, {"num_experts_per_tok", 3}}, ExpertStyle::kMixtral),
      HasSubstr("among 2 experts only"));
}

}  // namespace
}  // namespace kvc
