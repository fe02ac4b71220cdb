#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
      {"model_type", "gpt2", "\"gpt2\" is not supported; supported: llama, mistral, qwen2, qwen3"},
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
