#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/model/config_json.h"

namespace kvc {
namespace {

using testing::config_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::parse;
using testing::refusal;
using testing::synthetic_config;
using testing::windows_of;
using testing::with;
using testing::without;

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
  json["text_config"]["model_type"] = "gemma2";
  EXPECT_THAT(refusal(json),
              HasSubstr("text_config: \"model_type\" is \"gemma2\"; expected \"gemma3_text\""));
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

}  // namespace
}  // namespace kvc
