#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::synthetic_config;

std::vector<std::optional<std::int64_t>> windows_of(const ModelConfig& config) {
  std::vector<std::optional<std::int64_t>> windows;
  for (const LayerSpec& layer : config.layers) {
    windows.push_back(layer.window);
  }
  return windows;
}

ModelConfig parse(const Json& json) { return parse_model_config(json, "some/config.json"); }

std::string refusal(const Json& json) {
  try {
    parse(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

Json config_of(const std::string& model_type) {
  return synthetic_config({.model_type = model_type});
}

Json with(Json json, const char* key, Json value) {
  json[key] = std::move(value);
  return json;
}

Json without(Json json, const char* key) {
  json.erase(key);
  return json;
}

TEST(ModelConfig, ReadsSizesAndTokens) {
  Json json = config_of("llama");
  json["eos_token_id"] = {2, 7};
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.arch->model_type, "llama");
  EXPECT_EQ(config.vocab_size, 96);
  EXPECT_EQ(config.q_dim(), 32);
  EXPECT_EQ(config.kv_dim(), 16);
  EXPECT_EQ(config.num_layers, 4);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.dtype, "float32");
  EXPECT_THAT(windows_of(config), Each(std::nullopt));
}

TEST(ModelConfig, CountsParameters) {
  // Per layer 2*32*32 + 2*16*32 (attention) + 3*48*32 (MLP) + 2*32 (norms) = 7744; qwen2 adds
  // biases of 32 + 16 + 16, qwen3 norms of 8 + 8. Embedding, head and final norm: 2*96*32 + 32 =
  // 6176.
  EXPECT_EQ(parse(config_of("llama")).num_parameters(), 4 * 7744 + 6176);
  EXPECT_EQ(parse(config_of("qwen2")).num_parameters(), 4 * (7744 + 64) + 6176);
  EXPECT_EQ(parse(config_of("qwen3")).num_parameters(), 4 * (7744 + 16) + 6176);
}

TEST(ModelConfig, AppliesFamilyDefaults) {
  const auto kv_heads = [](const char* model_type, bool null) {
    Json json = with(config_of(model_type), "num_attention_heads", 64);
    json["hidden_size"] = 512;
    if (null) {
      json["num_key_value_heads"] = nullptr;
    } else {
      json.erase("num_key_value_heads");
    }
    return parse(json).num_kv_heads;
  };
  EXPECT_EQ(kv_heads("llama", false), 64);
  EXPECT_EQ(kv_heads("mistral", false), 8);
  EXPECT_EQ(kv_heads("qwen2", false), 32);
  EXPECT_EQ(kv_heads("qwen3", false), 32);
  EXPECT_EQ(kv_heads("mistral", true), 64);

  EXPECT_EQ(parse(without(config_of("mistral"), "head_dim")).head_dim, 8);
  EXPECT_EQ(parse(without(config_of("qwen3"), "head_dim")).head_dim, 128);
  EXPECT_EQ(parse(with(config_of("llama"), "head_dim", 16)).q_dim(), 64);
  EXPECT_FALSE(parse(without(config_of("qwen2"), "tie_word_embeddings")).tied_embeddings);
}

TEST(ModelConfig, ResolvesBiases) {
  const auto biases = [](const Json& json) {
    const ModelConfig config = parse(json);
    return std::tuple(config.attention_bias, config.output_bias, config.mlp_bias);
  };
  EXPECT_EQ(biases(with(config_of("llama"), "attention_bias", true)),
            std::tuple(true, true, false));
  EXPECT_EQ(biases(with(config_of("llama"), "mlp_bias", true)), std::tuple(false, false, true));
  EXPECT_EQ(biases(config_of("qwen2")), std::tuple(true, false, false));
  EXPECT_EQ(biases(with(config_of("qwen3"), "attention_bias", true)),
            std::tuple(true, true, false));
  EXPECT_EQ(biases(with(config_of("mistral"), "mlp_bias", true)), std::tuple(false, false, false));
}

TEST(ModelConfig, ResolvesWindows) {
  const std::optional<std::int64_t> none;
  EXPECT_THAT(windows_of(parse(without(config_of("mistral"), "sliding_window"))), Each(4096));
  EXPECT_THAT(windows_of(parse(config_of("mistral"))), Each(none));  // null
  EXPECT_THAT(windows_of(parse(with(config_of("llama"), "sliding_window", 5))), Each(none));

  Json qwen = synthetic_config({.model_type = "qwen2", .window = 7, .max_window_layers = 3});
  EXPECT_THAT(windows_of(parse(qwen)), ElementsAre(none, none, none, 7));
  EXPECT_FALSE(parse(qwen).same_kind(0, 3));
  EXPECT_TRUE(parse(qwen).same_kind(0, 2));
  qwen["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(windows_of(parse(qwen)), ElementsAre(none, 7, none, none));
  qwen["use_sliding_window"] = false;
  EXPECT_THAT(refusal(qwen), HasSubstr("sets no sliding window"));
  qwen.erase("layer_types");
  EXPECT_THAT(windows_of(parse(qwen)), Each(none));
}

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

TEST(ModelConfig, GemmaHasSettingsOfItsOwn) {
  Json json = with(config_of("gemma2"), "sliding_window", 7);
  json.erase("tie_word_embeddings");
  const ModelConfig gemma2 = parse(json);
  EXPECT_DOUBLE_EQ(gemma2.attention_scale, 1.0 / 16);  // query_pre_attn_scalar 256
  EXPECT_EQ(gemma2.score_softcap, 50);
  EXPECT_EQ(gemma2.logit_softcap, 30);
  EXPECT_DOUBLE_EQ(gemma2.embedding_scale, std::sqrt(32));
  EXPECT_EQ(gemma2.activation, Activation::kGeluTanh);
  EXPECT_TRUE(gemma2.tied_embeddings);
  const std::optional<std::int64_t> none;
  EXPECT_THAT(windows_of(gemma2), ElementsAre(7, none, 7, none));
  json["attn_logit_softcapping"] = nullptr;
  json["final_logit_softcapping"] = 12;
  json["query_pre_attn_scalar"] = 9;
  EXPECT_EQ(parse(json).score_softcap, 0);
  EXPECT_EQ(parse(json).logit_softcap, 12);
  EXPECT_DOUBLE_EQ(parse(json).attention_scale, 1.0 / 3);
}

// RoPE per layer type in the newer spelling; in the older one, scaling is of full layers only.
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

TEST(ModelConfig, TextModelsMayLieInside) {
  Json json = config_of("gemma3");
  json["eos_token_id"] = {1, 106};
  json["text_config"].erase("eos_token_id");
  for (const char* key : {"vocab_size", "num_attention_heads", "max_position_embeddings"}) {
    json["text_config"].erase(key);  // as released files leave them out
  }
  const ModelConfig config = parse(json);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1, 106));
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.num_heads, 8);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  json["text_config"]["hidden_size"] = 0;
  EXPECT_THAT(refusal(json), HasSubstr("text_config: \"hidden_size\""));
  EXPECT_THAT(refusal(without(json, "text_config")), HasSubstr("\"text_config\" is missing"));
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

TEST(ModelConfig, GraniteScales) {
  Json json = with(config_of("granite"), "attention_multiplier", 0.25);
  json["embedding_multiplier"] = 12;
  json["residual_multiplier"] = 0.5;
  json["logits_scaling"] = 8.0;
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.attention_scale, 0.25);
  EXPECT_EQ(config.embedding_scale, 12);
  EXPECT_EQ(config.residual_scale, 0.5);
  EXPECT_EQ(config.logit_scale, 0.125);
  EXPECT_EQ(parse(config_of("granite")).attention_scale, 1);  // its default, not 1 / sqrt(head_dim)
  EXPECT_THAT(refusal(with(json, "logits_scaling", 0.0)), HasSubstr("logits_scaling"));
  EXPECT_THAT(refusal(with(config_of("llama"), "logits_scaling", 2.0)), HasSubstr("is set"));
}

TEST(ModelConfig, BiasesEverywhereUnlessSwitchedOff) {
  const ModelConfig config = parse(config_of("starcoder2"));
  EXPECT_TRUE(config.attention_bias && config.output_bias && config.mlp_bias);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(parse(without(config_of("starcoder2"), "norm_epsilon")).norm_eps, 1e-5);
  const ModelConfig bare = parse(with(config_of("starcoder2"), "use_bias", false));
  EXPECT_FALSE(bare.attention_bias || bare.output_bias || bare.mlp_bias);
}

TEST(ModelConfig, DtypeWinsOverTorchDtype) {
  Json json = with(config_of("llama"), "torch_dtype", "float16");
  EXPECT_EQ(parse(json).dtype, "float32");
  json.erase("dtype");
  EXPECT_EQ(parse(json).dtype, "float16");
  json.erase("torch_dtype");
  EXPECT_EQ(parse(json).dtype, "");
}

TEST(ModelConfig, ConvertedConfigResolvesToItsFamily) {
  Json json =
      with(config_of("qwen3"), "kvconvert", {{"format", "factored"}, {"model_type", "qwen3"}});
  EXPECT_EQ(parse(json).arch->model_type, "qwen3");
  json["model_type"] = "kvconvert_qwen3";
  EXPECT_EQ(parse(json).arch->model_type, "qwen3");
  json["model_type"] = "kvconvert_llama";
  EXPECT_THAT(refusal(json), HasSubstr("kvconvert_qwen3"));
  EXPECT_THAT(refusal(without(json, "kvconvert")),
              HasSubstr("\"kvconvert_llama\" is not supported"));
}

struct BadKey {
  const char* key;
  Json value;
  const char* expected;
};

TEST(ModelConfig, RefusesWrongKindsAndImpossibleSizes) {
  const std::int64_t huge = std::int64_t{1} << 62;
  const std::vector<BadKey> cases = {
      {"hidden_size", 64.0, "an integer from 1"},
      {"hidden_size", 0, "an integer from 1"},
      {"hidden_size", -8, "an integer from 1"},
      {"hidden_size", huge, "an integer from 1 to 1048576"},
      {"vocab_size", UINT64_MAX, "an integer from 1"},
      {"intermediate_size", huge, "an integer from 1"},
      {"num_hidden_layers", "4", "an integer from 1"},
      {"num_hidden_layers", 1 << 30, "an integer from 1 to 4096"},
      {"num_attention_heads", nullptr, "\"num_attention_heads\" is missing"},
      {"num_key_value_heads", 3, "4 attention heads cannot share 3"},
      {"head_dim", 7, "even number"},
      {"head_dim", huge, "an integer from 1"},
      {"rms_norm_eps", 1, "1e-6"},
      {"rms_norm_eps", "1e-6", "1e-6"},
      {"tie_word_embeddings", 1, "true or false"},
      {"tie_word_embeddings", "true", "true or false"},
      {"eos_token_id", "</s>", "an integer or a list of integers"},
      {"dtype", "float8", "supported: float32"},
      {"layer_types", Json::array({"full_attention"}), "has 1 entries; expected 4"},
      {"rope_parameters", "llama3", "expected an object"},
  };
  for (const BadKey& bad : cases) {
    EXPECT_THAT(refusal(with(config_of("llama"), bad.key, bad.value)),
                AllOf(HasSubstr("some/config.json"), HasSubstr(bad.expected)))
        << bad.key;
  }
}

TEST(ModelConfig, RefusesWhatItCannotComputeByName) {
  const std::vector<BadKey> cases = {
      {"model_type", "gpt2", "\"gpt2\" is not supported; supported: llama, mistral, "},
      {"hidden_act", "relu2", "\"hidden_act\" is \"relu2\""},
      {"partial_rotary_factor", 0.5, "\"partial_rotary_factor\" is 0.5"},
      {"rope_scaling", {{"rope_type", "proportional"}}, "rope type \"proportional\""},
      {"rope_scaling", {{"type", "mrope"}, {"factor", 4.0}}, "rope type \"mrope\""},
      {"rope_scaling", {{"rope_type", "default"}, {"mrope_section", {2, 2}}}, "\"mrope_section\""},
      {"rope_scaling", {{"rope_type", "linear"}}, "rope_scaling: \"factor\" is missing"},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", -1}}, "\"factor\" is -1"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8.0}},
       "\"low_freq_factor\" is missing"},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}, "per layer type"},
      {"attn_logit_softcapping", 50.0, "\"attn_logit_softcapping\" is set"},
      {"use_bidirectional_attention", true, "\"use_bidirectional_attention\" is set"},
      {"layer_types", Json::array({"chunked", "chunked", "chunked", "chunked"}),
       "type \"chunked\""},
  };
  for (const BadKey& bad : cases) {
    EXPECT_THAT(refusal(with(config_of("llama"), bad.key, bad.value)), HasSubstr(bad.expected))
        << bad.key;
  }
  EXPECT_EQ(refusal(with(config_of("llama"), "use_bidirectional_attention", false)), "accepted");
  EXPECT_THAT(refusal(without(config_of("llama"), "hidden_size")),
              HasSubstr("\"hidden_size\" is missing"));
}

}  // namespace
}  // namespace kvc
