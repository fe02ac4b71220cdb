// Fused layers from checkpoint to cache: conversion, export and the runtime together.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "convert/convert.h"
#include "convert/plan_table.h"
#include "core/conversion_file.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/safetensors.h"
#include "export/export.h"
#include "model/checkpoint_config.h"
#include "model/fused_kv.h"
#include "model/weights.h"
#include "runtime/engine.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::read_tensor;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
namespace fs = std::filesystem;

// Makes of a checkpoint one whose upper layers' keys and values are exact combinations of the bottom and the
// middle storage layer's: below the last layer nothing is added to the residual stream, so that all layers see
// one input, and an upper layer's projections are combinations of theirs.
class ExactModel {
 public:
  ExactModel(const fs::path& directory, const SyntheticCheckpoint& model) : model_(model) {
    testing::write_synthetic_checkpoint(directory, model);
    const Checkpoint checkpoint = Checkpoint::open(directory);
    for (const std::string& name : checkpoint.tensor_names()) {
      tensors_[name] = load_tensor(checkpoint, name, checkpoint.info(name).shape, at::kFloat);
    }
    for (int layer = 0; layer < model.num_layers; ++layer) {
      tensors_.at(prefix(layer) + "input_layernorm.weight").fill_(1);
      if (layer + 1 < model.num_layers) {
        tensors_.at(prefix(layer) + "self_attn.o_proj.weight").zero_();
        tensors_.at(prefix(layer) + "mlp.down_proj.weight").zero_();
      }
    }
    for (int layer = model.num_layers / 2; layer < model.num_layers; ++layer) {
      combine(layer, "k_proj", key_factors(layer));
      combine(layer, "v_proj", value_factors(layer));
    }
    write(directory);
  }

  // [2, kv_dim], pairs tied
  at::Tensor key_factors(int layer) const {
    const at::Tensor pairs = testing::random_normal({2, model_.num_kv_heads, model_.head_dim / 2},
                                                    static_cast<std::uint64_t>(layer));
    return at::cat({pairs, pairs}, -1).flatten(1);
  }
  at::Tensor value_factors(int layer) const {
    return testing::random_normal({2, model_.num_kv_heads * model_.head_dim},
                                  70 + static_cast<std::uint64_t>(layer));
  }

 private:
  static std::string prefix(int layer) { return fmt::format("model.layers.{}.", layer); }
  at::Tensor& projection(int layer, const char* name) {
    return tensors_.at(fmt::format("{}self_attn.{}.weight", prefix(layer), name));
  }
  void combine(int layer, const char* name, const at::Tensor& factors) {
    const int middle = model_.num_layers / 2 - 1;
    projection(layer, name) = factors[0].unsqueeze(1) * projection(0, name) +
                              factors[1].unsqueeze(1) * projection(middle, name);
  }
  void write(const fs::path& directory) {
    std::vector<TensorSource> sources;
    for (const auto& [name, tensor] : tensors_) {
      const at::Tensor data = tensor.contiguous();
      sources.push_back({name, Dtype::kF32, data.sizes().vec(), [data] {
                           return std::span(static_cast<const std::byte*>(data.const_data_ptr()),
                                            data.nbytes());
                         }});
    }
    fs::remove(directory / "model.safetensors");
    write_safetensors(directory / "model.safetensors", std::move(sources));
  }

  SyntheticCheckpoint model_;
  std::map<std::string, at::Tensor> tensors_;
};

ConvertSettings fusedkv(const std::string& method = "fusedkv") {
  ConvertSettings settings;
  settings.method = method;
  return settings;
}

class FusedModel : public ::testing::Test {
 protected:
  void use(const SyntheticCheckpoint& model) {
    model_ = model;
    TokenSet tokens;
    tokens.sequences = testing::random_ids(6, 40, model.vocab_size, 3);
    tokens.tokenizer_hash = std::string(64, 'a');
    tokens.source_hashes = {std::string(64, 'b')};
    fs::remove(directory_ / "tokens.h5");
    write_token_set(directory_ / "tokens.h5", tokens);
  }
  void use_random(const SyntheticCheckpoint& model) {
    use(model);
    testing::write_synthetic_checkpoint(directory_ / "model", model);
  }

  fs::path convert_to(const std::string& name, ConvertSettings settings,
                      const fs::path& state = {}) {
    resolve(settings);
    convert({.checkpoint = directory_ / "model",
             .tokens = directory_ / "tokens.h5",
             .calibration = {},
             .fisher = {},
             .out = directory_ / name,
             .state = state,
             .force = true},
            settings);
    return directory_ / name;
  }
  fs::path export_to(const std::string& name, const fs::path& conversion) {
    ExportOptions options;
    options.checkpoint = directory_ / "model";
    options.conversion = conversion;
    options.out = directory_ / name;
    export_checkpoint(options);
    return directory_ / name;
  }
  // Of the last calibration sequence, as the engine runs `candidate`: mean KL(p_original || p_candidate).
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
  // Of the last tokens: a prompt, then one token at a time.
  at::Tensor logits(const fs::path& directory) const {
    const Engine engine = Engine::load(directory, {});
    const auto ids = testing::random_ids(1, 30, model_.vocab_size, 8).front();
    Sequence sequence = engine.new_sequence();
    std::vector<at::Tensor> rows =
        engine.prefill({&sequence}, {{ids.begin(), ids.begin() + 20}}, Engine::Rows::kAll);
    for (std::size_t i = 20; i < ids.size(); ++i) {
      rows.push_back(engine.extend({&sequence}, {{ids[i]}}, Engine::Rows::kAll).front());
    }
    return at::cat(rows);
  }
  template <typename Run>
  static std::string error_of(const Run& run) {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  testing::TemporaryDirectory directory_;
  SyntheticCheckpoint model_;
};

TEST_F(FusedModel, ExactFusionsAreFoundAndLoseNothing) {
  use({.num_layers = 6});
  const ExactModel exact(directory_ / "model", model_);
  const at::Tensor original = logits(directory_ / "model");
  for (const char* variant : {"paper", "search", "complex", "matrices"}) {
    ConvertSettings settings = fusedkv();
    settings.fusion.sources = std::string(variant) == "search"     ? FusionSources::kSearch
                              : std::string(variant) == "matrices" ? FusionSources::kAll
                                                                   : FusionSources::kPaper;
    settings.fusion.form = std::string(variant) == "complex"    ? FusionForm::kComplex
                           : std::string(variant) == "matrices" ? FusionForm::kFull
                                                                : FusionForm::kChannel;
    const fs::path conversion = convert_to(variant, settings);
    const Conversion read = read_conversion(conversion);
    ASSERT_EQ(read.fused.size(), 3u);
    for (const FusedReport& layer : read.fused) {
      EXPECT_NEAR(layer.key_r2, 1, 1e-5) << variant;
      EXPECT_NEAR(layer.value_r2, 1, 1e-5) << variant;
    }
    const fs::path factored = export_to(std::string(variant) + "-factored", conversion);
    EXPECT_TRUE(tensors_close(logits(factored), original, 2e-3)) << variant;
    EXPECT_FALSE(Checkpoint::open(factored).contains("model.layers.4.self_attn.k_proj.weight"));
    EXPECT_TRUE(Checkpoint::open(factored).contains("model.layers.2.self_attn.k_proj.weight"));
  }
  const at::Tensor key =
      read_tensor(directory_ / "paper" / "conversion.safetensors", "kvconvert.fused.4.key");
  EXPECT_TRUE(tensors_close(key, exact.key_factors(4), 1e-2));
}

TEST_F(FusedModel, RefusesBadFitsWithTheirNumbers) {
  use_random({.num_layers = 4});
  EXPECT_THAT(error_of([&] { convert_to("out", fusedkv()); }),
              AllOf(HasSubstr("2 of 2 fused layers"), HasSubstr("--min-r2 0.8"),
                    HasSubstr("layer 2: keys"), HasSubstr("layer 3: keys"),
                    HasSubstr("bad on pretrained models"), HasSubstr("--force")));
  ConvertSettings forced = fusedkv();
  forced.fusion.any_fit = true;
  const Conversion conversion = read_conversion(convert_to("forced", forced));
  EXPECT_LT(conversion.fused[0].key_r2, 0.8);
  EXPECT_EQ(conversion.plan.fused.size(), 2u);
  ConvertSettings mixed = fusedkv();
  mixed.fusion.mixed = true;
  EXPECT_THAT(error_of([&] { convert_to("none", mixed); }), HasSubstr("all would stay plain"));
  // Of the two layers one passes.
  mixed.fusion.min_r2 = (std::min(conversion.fused[0].key_r2, conversion.fused[0].value_r2) +
                         std::min(conversion.fused[1].key_r2, conversion.fused[1].value_r2)) /
                        2;
  const Conversion half = read_conversion(convert_to("half", mixed));
  EXPECT_EQ(half.plan.fused.size(), 1u);
  EXPECT_EQ(half.fused[0].stays_plain + half.fused[1].stays_plain, 1);
  EXPECT_EQ(half.plan.num_layers_from(KvSource::kPlain), 3);
  EXPECT_NO_THROW(logits(export_to("half-factored", directory_ / "half")));
}

TEST_F(FusedModel, LiteReadsTheMiddleAndTheBottomLayer) {
  use_random({.num_layers = 5});
  ConvertSettings settings = fusedkv("fusedkv-lite");
  settings.fusion.any_fit = true;
  const Conversion conversion = read_conversion(convert_to("lite", settings));
  ASSERT_EQ(conversion.plan.fused.size(), 2u);  // of 5 layers the upper 2
  EXPECT_EQ(conversion.plan.fused[1].key_sources, (std::vector<int>{2}));
  EXPECT_EQ(conversion.plan.fused[1].value_sources, (std::vector<int>{0}));
  EXPECT_TRUE(
      at::equal(read_tensor(conversion.tensors, "kvconvert.fused.4.value"), at::ones({1, 16})));
  EXPECT_NO_THROW(logits(export_to("lite-factored", directory_ / "lite")));
  settings.fusion.form = FusionForm::kComplex;
  EXPECT_THAT(error_of([&] { resolve(settings); }), HasSubstr("reads its sources as they are"));
}

TEST_F(FusedModel, YocoAndClaNeedForce) {
  use_random({.num_layers = 4});
  const ModelConfig config =
      parse_model_config(testing::synthetic_config({.num_layers = 4}), "test");
  for (const char* method : {"yoco", "cla"}) {
    EXPECT_THAT(error_of([&] { make_plan(config, fusedkv(method), false); }),
                AllOf(HasSubstr(method), HasSubstr("--force")));
    ConvertSettings settings = fusedkv(method);
    settings.fusion.any_fit = true;
    EXPECT_NO_THROW(logits(export_to(std::string(method) + "-out", convert_to(method, settings))));
  }
  EXPECT_EQ(make_plan(config, fusedkv("yoco"), true).fused[1].value_sources, (std::vector<int>{1}));
  EXPECT_EQ(make_plan(config, fusedkv("cla"), true).fused[1].key_sources, (std::vector<int>{2}));
}

TEST_F(FusedModel, PlanKnowsItsBytes) {
  use_random({.num_layers = 6});
  ModelConfig config = parse_model_config(testing::synthetic_config({.num_layers = 6}), "test");
  ConvertSettings settings = fusedkv();
  const PlanTable table = plan_table(config, settings, false);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[1].source, KvSource::kFused);
  EXPECT_EQ(table.rows[1].merged_bytes, 0);
  EXPECT_DOUBLE_EQ(table.kept_at_target, 0.5);
  // Three layers: four vectors of 16 for two projections of 16 x 32.
  EXPECT_EQ(table.weights_growth_bytes, 3 * (4 * 16 * 4 - 2 * 16 * 32 * 4));
  settings.fusion.storage_layers = 6;
  EXPECT_THAT(error_of([&] { make_plan(config, settings, false); }),
              HasSubstr("--storage-layers 6"));
  settings.fusion.storage_layers = 2;
  EXPECT_DOUBLE_EQ(plan_table(config, settings, false).kept_at_target, 2.0 / 6);
  config.layers[0].window = 8;  // the bottom layer sees less than the upper ones
  EXPECT_THAT(error_of([&] { make_plan(config, settings, false); }),
              AllOf(HasSubstr("layer 2"), HasSubstr("layer 0"), HasSubstr("--sources search")));
  settings.fusion.sources = FusionSources::kSearch;
  EXPECT_EQ(make_plan(config, settings, false).fused[0].key_sources, (std::vector<int>{1}));
}

TEST_F(FusedModel, EqualInputsGiveEqualBytes) {
  use_random({.num_layers = 4, .attention_bias = true});
  ConvertSettings settings = fusedkv();
  settings.fusion.any_fit = true;
  settings.fusion.head_map = HeadMap::kSearch;
  for (const char* name : {"conversion.safetensors", "conversion.h5"}) {
    EXPECT_EQ(sha256_hex_of_file(convert_to("a", settings) / name),
              sha256_hex_of_file(convert_to("b", settings) / name));
  }
  EXPECT_EQ(read_conversion(directory_ / "a").plan.fused[0].key_heads.size(), 4u);
  EXPECT_NO_THROW(logits(export_to("heads", directory_ / "a")));
}

// From the fit of a random model, which is bad, steps lead to a smaller divergence; stopping halfway and going
// on gives the same bytes.
TEST_F(FusedModel, DistillationLowersTheDivergenceAndResumes) {
  use_random({.num_layers = 4});
  ConvertSettings settings = fusedkv();
  settings.fusion.distill = {.steps = 30, .rate = 2e-2};
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
TEST_F(FusedModel, TunedLayersLowerTheDivergenceFurther) {
  for (const SyntheticCheckpoint& model :
       {SyntheticCheckpoint{.model_type = "qwen3"}, SyntheticCheckpoint{.model_type = "phi3"},
        SyntheticCheckpoint{.model_type = "gemma", .dtype = "bfloat16"}}) {
    fs::remove_all(directory_ / "model");
    use_random(model);
    ConvertSettings settings = fusedkv();
    settings.fusion.distill = {.steps = 30, .rate = 2e-2};
    const std::string name = model.model_type;
    const Json alone = read_conversion(convert_to(name + "-factors", settings)).distillation;
    settings.fusion.distill.tune_layers = true;
    settings.fusion.distill.tune_rate = 5e-3;
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

// Layers of every family read the pair of storage layers that fits best, where there is one; a step of
// generation gives what a prompt gives.
TEST_F(FusedModel, EveryFamilyReadsOtherLayers) {
  int converted = 0;
  for (const std::string& name : testing::zoo_names()) {
    const testing::ZooCase zoo = testing::load_zoo_case(name);
    const ModelConfig config = read_model_config(Checkpoint::open(zoo.directory));
    ConvertSettings settings = fusedkv();
    settings.fusion.sources = FusionSources::kSearch;
    settings.fusion.mixed = true;
    settings.fusion.min_r2 = -1e9;
    resolve(settings);
    if (config.mla || config.num_layers < 2 || make_plan(config, settings, false).fused.empty()) {
      continue;
    }
    use({.vocab_size = config.vocab_size});
    const fs::path conversion = directory_ / (name + "-conversion");
    convert({.checkpoint = zoo.directory,
             .tokens = directory_ / "tokens.h5",
             .calibration = {},
             .fisher = {},
             .out = conversion},
            settings);
    ExportOptions options;
    options.checkpoint = zoo.directory;
    options.conversion = conversion;
    options.out = directory_ / name;
    export_checkpoint(options);
    EngineOptions in_float32;
    in_float32.dtype = "float32";
    const Engine engine = Engine::load(options.out, in_float32);
    const std::vector<std::int64_t>& ids = zoo.prompts.front().ids;
    Sequence whole = engine.new_sequence(), parts = engine.new_sequence();
    const at::Tensor expected = engine.prefill({&whole}, {ids}, Engine::Rows::kLast).front();
    engine.prefill({&parts}, {{ids.begin(), ids.end() - 3}}, Engine::Rows::kLast);
    at::Tensor last;
    for (auto id = ids.end() - 3; id != ids.end(); ++id) {
      last = engine.extend({&parts}, {{*id}}, Engine::Rows::kLast).front();
    }
    EXPECT_TRUE(at::isfinite(last).all().item<bool>()) << name;
    if (!zoo.by_length) {
      EXPECT_TRUE(tensors_close(last, expected, 1e-3 * std::max(1.0, testing::spread(expected))))
          << name;
    }
    EXPECT_LT(
        whole.cache().allocated_bytes(),
        original_bytes(engine.plan(), 16 * ((whole.num_tokens() + 15) / 16), KvDtype::kFloat32))
        << name;
    ++converted;
  }
  EXPECT_GT(converted, 20);
}

TEST_F(FusedModel, FoldedExportIsRefused) {
  use_random({.num_layers = 4});
  ConvertSettings settings = fusedkv();
  settings.fusion.any_fit = true;
  const fs::path conversion = convert_to("out", settings);
  ExportOptions options;
  options.checkpoint = directory_ / "model";
  options.conversion = conversion;
  options.out = directory_ / "folded";
  options.format = ExportFormat::kFolded;
  EXPECT_THAT(error_of([&] { export_checkpoint(options); }), HasSubstr("use factored"));
}

}  // namespace
}  // namespace kvc
