// Fused layers that learn from the original's logits: conversion, export and the runtime together.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "convert/fusion/fusion_plan.h"
#include "core/checkpoint.h"
#include "core/conversion_file.h"
#include "core/hash.h"
#include "tests/convert/fused_model_fixture.h"

namespace kvc {
namespace {

using testing::fusedkv;
using testing::read_tensor;
using testing::SyntheticCheckpoint;
namespace fs = std::filesystem;

class DistilledModel : public testing::FusedModel {
 protected:
  // For the last calibration sequence, as the engine runs `candidate`: mean KL(p_original || p_candidate).
  double held_out_divergence(const fs::path& candidate) const {
    const Engine::Ids ids = {
        read_token_set(directory_ / "tokens.h5", model_.vocab_size).sequences.back()};
    const auto log_probabilities = [&](const fs::path& directory) {
      EngineOptions options;
      options.dtype = "float32";
      const Engine engine = Engine::load(directory, options);
      Sequence sequence = engine.new_sequence();
      return engine.prefill({&sequence}, ids, Engine::Rows::kAll).front().log_softmax(-1);
    };
    const at::Tensor original = log_probabilities(directory_ / "model");
    const at::Tensor difference = original - log_probabilities(candidate);
    return (original.exp() * difference).sum(-1).mean().item<double>();
  }
};

// From the fit of a random model, which is bad, steps lead to a smaller divergence; stopping halfway and going
// on gives the same bytes.
TEST_F(DistilledModel, DistillationLowersTheDivergenceAndResumes) {
  use_random({.num_layers = 4});
  ConvertSettings settings = fusedkv();
  settings.own<FusionSettings>().distill = {.steps = 30, .rate = 2e-2};
  const fs::path whole = convert_to("whole", settings);
  const Json report = read_conversion(whole).distillation;
  EXPECT_LT(report.at("held_out_kl_after").get<double>(),
            0.95 * report.at("held_out_kl_before").get<double>());
  EXPECT_EQ(report.at("held_out_sequences"), 1);
  const at::Tensor key = read_tensor(whole / "conversion.safetensors", "kvconvert.fused.3.key")
                             .view({2, model_.num_kv_heads, 2, model_.head_dim / 2});
  EXPECT_TRUE(at::equal(key.select(2, 0), key.select(2, 1)));  // tied weights stay tied
  EXPECT_NO_THROW(logits(export_to("distilled", whole)));

  const fs::path state = directory_ / "state.safetensors";
  convert_to("first", settings, state);
  const std::string bytes = sha256_hex_of_file(whole / "conversion.safetensors");
  EXPECT_EQ(sha256_hex_of_file(directory_ / "first" / "conversion.safetensors"), bytes);
  ASSERT_TRUE(fs::exists(state));
  convert_to("again", settings, state);  // all steps are done
  EXPECT_EQ(sha256_hex_of_file(directory_ / "again" / "conversion.safetensors"), bytes);
}

// Layers that learn too come closer than factors alone; the exported tensors are the learned ones, the others the
// checkpoint's; a run that goes on gives the same bytes.
TEST_F(DistilledModel, TunedLayersLowerTheDivergenceFurther) {
  for (const SyntheticCheckpoint& model :
       {SyntheticCheckpoint{.model_type = "qwen3"}, SyntheticCheckpoint{.model_type = "phi3"},
        SyntheticCheckpoint{.model_type = "gemma", .dtype = "bfloat16"}}) {
    fs::remove_all(directory_ / "model");
    use_random(model);
    ConvertSettings settings = fusedkv();
    settings.own<FusionSettings>().distill = {.steps = 30, .rate = 2e-2};
    const std::string name = model.model_type;
    const Json alone = read_conversion(convert_to(name + "-factors", settings)).distillation;
    settings.own<FusionSettings>().distill.tune_layers = true;
    settings.own<FusionSettings>().distill.tune_rate = 5e-3;
    const fs::path state = directory_ / (name + "-state.safetensors");
    const fs::path tuned = convert_to(name + "-tuned", settings, state);
    const Json report = read_conversion(tuned).distillation;
    EXPECT_LT(report.at("held_out_kl_after").get<double>(),
              0.95 * alone.at("held_out_kl_after").get<double>())
        << name;
    EXPECT_GE(report.at("tuned_tensors").get<int>(), 2 * 4) << name;  // of layers 2 and 3

    const Checkpoint original = Checkpoint::open(directory_ / "model");
    const fs::path exported = export_to(name + "-exported", tuned);
    const Checkpoint converted = Checkpoint::open(exported);
    const std::string o_proj = "model.layers.3.self_attn.o_proj.weight";
    EXPECT_EQ(converted.info(o_proj).dtype, original.info(o_proj).dtype);
    const auto differs = [&](const std::string& tensor) {
      const auto a = converted.bytes(tensor), b = original.bytes(tensor);
      return !std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    EXPECT_TRUE(differs(o_proj)) << name;
    EXPECT_FALSE(differs("model.layers.1.self_attn.o_proj.weight"));
    EXPECT_FALSE(differs("model.layers.3.mlp.down_proj.weight"));

    // The engine's divergence is that of the report, up to what the checkpoint's type rounds.
    const double kl = held_out_divergence(exported);
    EXPECT_NEAR(kl, report.at("held_out_kl_after").get<double>(), 0.05 * kl) << name;

    const std::string bytes = sha256_hex_of_file(tuned / "conversion.safetensors");
    const fs::path again = convert_to(name + "-again", settings, state);
    EXPECT_EQ(sha256_hex_of_file(again / "conversion.safetensors"), bytes) << name;
  }
}

}  // namespace
}  // namespace kvc
