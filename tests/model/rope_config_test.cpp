// The RoPE of a config.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/config_json.h"

namespace kvc {
namespace {

using testing::config_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::parse;
using testing::refusal;
using testing::windows_of;
using testing::with;
using testing::without;

TEST(ModelConfig, ReadsRopeInBothSpellings) {
  const Json llama3 = {{"factor", 8.0},
                       {"high_freq_factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_type", "llama3"}};
  Json old = without(config_of("llama"), "rope_parameters");
  old["rope_theta"] = 500000.0;
  old["rope_scaling"] = llama3;
  const RopeConfig rope = parse(old).ropes.front();
  EXPECT_EQ(rope, (RopeConfig{.type = RopeType::kLlama3,
                              .theta = 500000,
                              .factor = 8,
                              .low_freq_factor = 1,
                              .high_freq_factor = 4,
                              .original_max_position_embeddings = 8192,
                              .rotary_dim = 8}));

  Json current = with(config_of("llama"), "rope_parameters", llama3);
  current["rope_parameters"]["rope_theta"] = 500000;
  EXPECT_EQ(parse(current).ropes.front(), rope);
  current["original_max_position_embeddings"] = 4096;  // the top-level key wins
  EXPECT_EQ(parse(current).ropes.front().original_max_position_embeddings, 4096);
  current.erase("original_max_position_embeddings");
  current["rope_parameters"].erase("original_max_position_embeddings");
  EXPECT_EQ(parse(current).ropes.front().original_max_position_embeddings, 256);
}

TEST(ModelConfig, RopeScalingReplacesRopeParametersWhole) {
  Json json =
      with(config_of("llama"), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}});
  EXPECT_EQ(parse(json).ropes.front().theta, 5e5);
  json["rope_scaling"] = nullptr;
  EXPECT_EQ(parse(json).ropes.front().theta, 5e5);
  json["rope_scaling"] = Json::object();
  EXPECT_EQ(parse(json).ropes.front().theta, 5e5);
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(parse(json).ropes.front(),
            (RopeConfig{.type = RopeType::kLinear, .theta = 10000, .factor = 2, .rotary_dim = 8}));
}

TEST(ModelConfig, ReadsEveryRopeType) {
  const auto rope_of = [](const char* model_type, const Json& parameters) {
    return parse(with(config_of(model_type), "rope_scaling", parameters)).ropes.front();
  };
  const RopeConfig dynamic = rope_of("llama", {{"type", "dynamic"}, {"factor", 4}});
  EXPECT_EQ(dynamic.type, RopeType::kDynamic);
  EXPECT_EQ(dynamic.max_position_embeddings, 256);
  EXPECT_TRUE(dynamic.depends_on_length());
  // Without a factor it is max_position_embeddings over the original length: 256 / 64.
  const RopeConfig yarn =
      rope_of("qwen2", {{"rope_type", "yarn"}, {"original_max_position_embeddings", 64}});
  EXPECT_EQ(yarn.factor, 4);
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4) + 1, 1e-12);
  EXPECT_FALSE(yarn.depends_on_length());
  for (const double factor : {0.0, -1.0, 1e-300, 1e300}) {
    const Json parameters = {{"rope_type", "yarn"}, {"factor", 4}, {"attention_factor", factor}};
    EXPECT_THAT(refusal(with(config_of("qwen2"), "rope_scaling", parameters)),
                HasSubstr("\"attention_factor\" is"));
  }

  // phi3: older names of longrope; the original length is 4096 unless the config itself says another.
  const Json factors = {{"short_factor", {1, 1, 1, 1}}, {"long_factor", {2, 2, 2, 2}}};
  for (const char* name : {"longrope", "su", "yarn"}) {
    const RopeConfig longrope = rope_of("phi3", with(factors, "type", name));
    EXPECT_EQ(longrope.type, RopeType::kLongRope);
    EXPECT_EQ(longrope.original_max_position_embeddings, 4096);
    EXPECT_EQ(longrope.attention_factor, 1);  // 256 / 4096 stretches nothing
  }
  Json phi = with(config_of("phi3"), "original_max_position_embeddings", 16);
  phi["rope_scaling"] = with(factors, "type", "longrope");
  EXPECT_NEAR(parse(phi).ropes.front().attention_factor, std::sqrt(1 + std::log(16) / std::log(16)),
              1e-12);
}

TEST(ModelConfig, RotatesPartOfAHeadWhereTheFamilyDoes) {
  EXPECT_EQ(parse(with(config_of("phi3"), "partial_rotary_factor", 0.75)).ropes.front().rotary_dim,
            6);
  EXPECT_THAT(refusal(with(config_of("phi3"), "partial_rotary_factor", 0.4)), HasSubstr("even"));
  EXPECT_THAT(refusal(with(config_of("phi3"), "partial_rotary_factor", 1.5)),
              HasSubstr("at most 1"));
}

TEST(ModelConfig, Gemma3HasTwoRopes) {
  Json json = with(config_of("gemma3_text"), "sliding_window", 7);
  json["sliding_window_pattern"] = 2;
  const ModelConfig current = parse(json);
  EXPECT_EQ(current.ropes[0].theta, 10000);
  EXPECT_EQ(current.ropes[1].theta, 100);
  EXPECT_EQ(current.layer(0).rope, 1);
  EXPECT_EQ(current.layer(1).rope, 0);
  EXPECT_FALSE(current.same_kind(0, 1));
  EXPECT_TRUE(current.same_kind(0, 2));
  EXPECT_EQ(current.logit_softcap, 0);

  json.erase("rope_parameters");
  EXPECT_EQ(parse(json).ropes[0].theta, 1e6);
  EXPECT_EQ(parse(json).ropes[1].theta, 1e4);
  json["rope_theta"] = 5e5;
  json["rope_local_base_freq"] = 500;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
  const ModelConfig older = parse(json);
  EXPECT_EQ(older.ropes[0],
            (RopeConfig{.type = RopeType::kLinear, .theta = 5e5, .factor = 8, .rotary_dim = 8}));
  EXPECT_EQ(older.ropes[1], (RopeConfig{.theta = 500, .rotary_dim = 8}));

  json["attn_logit_softcapping"] = 50.0;  // which transformers would not apply
  EXPECT_THAT(refusal(json), HasSubstr("attn_logit_softcapping"));
}

TEST(ModelConfig, LayersMayHaveNoRope) {
  const auto ropes = [](const Json& json) {
    std::vector<int> indices;
    for (const LayerSpec& layer : parse(json).layers) {
      indices.push_back(layer.rope);
    }
    return indices;
  };
  EXPECT_THAT(ropes(config_of("smollm3")), ElementsAre(0, 0, 0, -1));
  EXPECT_THAT(ropes(with(config_of("smollm3"), "no_rope_layer_interval", 2)),
              ElementsAre(0, -1, 0, -1));
  EXPECT_THAT(ropes(with(config_of("smollm3"), "no_rope_layers", {0, 1, 1, 0})),
              ElementsAre(-1, 0, 0, -1));
  EXPECT_THAT(refusal(with(config_of("smollm3"), "no_rope_layers", {0, 1})),
              HasSubstr("2 entries"));
  EXPECT_THAT(refusal(with(config_of("llama"), "no_rope_layers", {0, 1, 1, 0})),
              HasSubstr("\"no_rope_layers\" is set"));
  Json sliding = with(config_of("smollm3"), "use_sliding_window", true);
  sliding["sliding_window"] = 9;
  const std::optional<std::int64_t> none;
  EXPECT_THAT(windows_of(parse(sliding)), ElementsAre(none, none, none, 9));
}

}  // namespace
}  // namespace kvc
