// What a config.json is refused for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/model/config_json.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using testing::config_of;
using ::testing::HasSubstr;
using testing::refusal;
using testing::with;
using testing::without;

TEST(ModelConfig, RefusesCodeOfTheCheckpointOnlyWhereTheTypeIsUnknown) {
  const Json code = {{"AutoModelForCausalLM", "modeling_x.XForCausalLM"}};
  EXPECT_THAT(refusal(with(with(config_of("llama"), "model_type", "xenon"), "auto_map", code)),
              AllOf(HasSubstr("auto_map"), HasSubstr("never run"), HasSubstr("\"xenon\"")));
  for (const char* known : {"llama", "phi3", "deepseek_v2"}) {
    EXPECT_EQ(refusal(with(config_of(known), "auto_map", code)), "") << known;
  }
}

// What the family's class in transformers ignores.
TEST(ModelConfig, RefusesSettingsThatTheFamilyDoesNotRead) {
  Json gemma = config_of("gemma3");
  EXPECT_EQ(refusal(gemma), "");
  gemma["text_config"]["final_logit_softcapping"] = 30.0;
  EXPECT_THAT(refusal(gemma), HasSubstr("\"final_logit_softcapping\" is set"));
  const Json full = "full_attention", sliding = "sliding_attention";
  for (const char* family : {"mixtral", "starcoder2", "phi3", "qwen3_moe"}) {
    Json config = with(config_of(family), "sliding_window", 7);
    config["use_sliding_window"] = true;
    config["layer_types"] = {sliding, full, sliding, sliding};
    EXPECT_THAT(refusal(config), AllOf(HasSubstr("layer 1 is full_attention"), HasSubstr(family),
                                       HasSubstr("remove the key")));
    config["layer_types"] = {sliding, sliding, sliding, sliding};
    EXPECT_EQ(refusal(config), "") << family;
    config["sliding_window"] = nullptr;
    config["layer_types"] = {full, full, full, full};
    EXPECT_EQ(refusal(config), "") << family;
  }
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
      {"rms_norm_eps", 0.0, "a small positive number"},
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
      {"is_causal", false, "\"is_causal\" is not true"},
      {"is_causal", nullptr, "\"is_causal\" is not true"},
      {"transformers_weights", "other.safetensors", "names \"other.safetensors\""},
      {"layer_types", Json::array({"chunked", "chunked", "chunked", "chunked"}),
       "type \"chunked\""},
  };
  for (const BadKey& bad : cases) {
    EXPECT_THAT(refusal(with(config_of("llama"), bad.key, bad.value)), HasSubstr(bad.expected))
        << bad.key;
  }
  EXPECT_EQ(refusal(with(config_of("llama"), "use_bidirectional_attention", false)), "");
  EXPECT_EQ(refusal(with(config_of("llama"), "is_causal", true)), "");
  EXPECT_EQ(refusal(with(config_of("llama"), "transformers_weights", "model.safetensors")), "");
  EXPECT_THAT(refusal(without(config_of("llama"), "hidden_size")),
              HasSubstr("\"hidden_size\" is missing"));
}

}  // namespace
}  // namespace kvc
