// Fused layers from checkpoint to cache: conversion, export and the runtime together.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "convert/convert.h"
#include "convert/fusion/fusion_plan.h"
#include "convert/plan.h"
#include "convert/plan_table.h"
#include "core/conversion_file.h"
#include "core/hash.h"
#include "core/safetensors.h"
#include "export/export.h"
#include "model/config.h"
#include "model/fused_kv.h"
#include "model/weights.h"
#include "runtime/engine.h"
#include "tests/convert/fused_model_fixture.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using testing::fusedkv;
using testing::FusedModel;
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

TEST_F(FusedModel, ExactFusionsAreFoundAndLoseNothing) {
  use({.num_layers = 6});
  const ExactModel exact(directory_ / "model", model_);
  const at::Tensor original = logits(directory_ / "model");
  for (const char* variant : {"paper", "search", "complex", "matrices"}) {
    ConvertSettings settings = fusedkv();
    settings.own<FusionSettings>().sources =
        std::string(variant) == "search"     ? FusionSources::kSearch
        : std::string(variant) == "matrices" ? FusionSources::kAll
                                             : FusionSources::kPaper;
    settings.own<FusionSettings>().form = std::string(variant) == "complex" ? FusionForm::kComplex
                                          : std::string(variant) == "matrices"
                                              ? FusionForm::kFull
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
                    HasSubstr("rarely fit a pretrained model"), HasSubstr("--force")));
  ConvertSettings forced = fusedkv();
  forced.any_fit = true;
  const Conversion conversion = read_conversion(convert_to("forced", forced));
  EXPECT_LT(conversion.fused[0].key_r2, 0.8);
  EXPECT_EQ(conversion.plan.fused.size(), 2u);
  Conversion constant = conversion;  // values that do not vary have no R^2
  constant.fused[0].value_r2 = -std::numeric_limits<double>::infinity();
  std::filesystem::remove(directory_ / "forced" / "conversion.h5");
  write_conversion(directory_ / "forced", constant);
  EXPECT_EQ(read_conversion(directory_ / "forced" / "conversion.h5").fused[0].value_r2,
            constant.fused[0].value_r2);
  ConvertSettings mixed = fusedkv();
  mixed.own<FusionSettings>().mixed = true;
  EXPECT_THAT(error_of([&] { convert_to("none", mixed); }), HasSubstr("all would stay plain"));
  // One of the two layers passes.
  mixed.own<FusionSettings>().min_r2 =
      (std::min(conversion.fused[0].key_r2, conversion.fused[0].value_r2) +
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
  settings.any_fit = true;
  const Conversion conversion = read_conversion(convert_to("lite", settings));
  ASSERT_EQ(conversion.plan.fused.size(), 2u);  // of 5 layers the upper 2
  EXPECT_EQ(conversion.plan.fused[1].key_sources, (std::vector<int>{2}));
  EXPECT_EQ(conversion.plan.fused[1].value_sources, (std::vector<int>{0}));
  EXPECT_TRUE(
      at::equal(read_tensor(conversion.tensors, "kvconvert.fused.4.value"), at::ones({1, 16})));
  EXPECT_NO_THROW(logits(export_to("lite-factored", directory_ / "lite")));
  settings.own<FusionSettings>().form = FusionForm::kComplex;
  EXPECT_THAT(error_of([&] { resolve(settings); }), HasSubstr("read their sources unchanged"));
}

TEST_F(FusedModel, YocoAndClaNeedForce) {
  use_random({.num_layers = 4});
  const ModelConfig config =
      parse_model_config(testing::synthetic_config({.num_layers = 4}), "test");
  for (const char* method : {"yoco", "cla"}) {
    EXPECT_THAT(error_of([&] { make_plan(config, fusedkv(method), false); }),
                AllOf(HasSubstr(method), HasSubstr("--force")));
    ConvertSettings settings = fusedkv(method);
    settings.any_fit = true;
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
  // Three layers: four vectors of 16 codes and a scale for two projections of 16 x 32.
  EXPECT_EQ(table.weights_growth_bytes, 3 * (4 * 16 * 2 - 2 * 16 * 32 * 4));
  settings.own<FusionSettings>().storage_layers = 6;
  EXPECT_THAT(error_of([&] { make_plan(config, settings, false); }),
              HasSubstr("--storage-layers 6"));
  settings.own<FusionSettings>().storage_layers = 2;
  EXPECT_DOUBLE_EQ(plan_table(config, settings, false).kept_at_target, 2.0 / 6);
  config.layers[0].window = 8;  // the bottom layer sees less than the upper ones
  EXPECT_THAT(error_of([&] { make_plan(config, settings, false); }),
              AllOf(HasSubstr("layer 2"), HasSubstr("layer 0"), HasSubstr("--sources search")));
  settings.own<FusionSettings>().sources = FusionSources::kSearch;
  EXPECT_EQ(make_plan(config, settings, false).fused[0].key_sources, (std::vector<int>{1}));
}

TEST_F(FusedModel, EqualInputsGiveEqualBytes) {
  use_random({.num_layers = 4, .attention_bias = true});
  ConvertSettings settings = fusedkv();
  settings.any_fit = true;
  settings.own<FusionSettings>().head_map = HeadMap::kSearch;
  for (const char* name : {"conversion.safetensors", "conversion.h5"}) {
    EXPECT_EQ(sha256_hex_of_file(convert_to("a", settings) / name),
              sha256_hex_of_file(convert_to("b", settings) / name));
  }
  EXPECT_EQ(read_conversion(directory_ / "a").plan.fused[0].key_heads.size(), 4u);
  EXPECT_NO_THROW(logits(export_to("heads", directory_ / "a")));
}

// Layers of every family read the pair of storage layers that fits best, where there is one; a step of
// generation gives what a prompt gives.
TEST_F(FusedModel, EveryFamilyReadsOtherLayers) {
  int converted = 0;
  for (const std::string& name : testing::zoo_names()) {
    const testing::ZooCase zoo = testing::load_zoo_case(name);
    const ModelConfig config = read_model_config(Checkpoint::open(zoo.directory));
    ConvertSettings settings = fusedkv();
    settings.own<FusionSettings>().sources = FusionSources::kSearch;
    settings.own<FusionSettings>().mixed = true;
    settings.own<FusionSettings>().min_r2 = -1e9;
    resolve(settings);
    if (config.mla || config.num_layers < 2) {
      continue;
    }
    const std::string refusal = error_of([&] { make_plan(config, settings, false); });
    if (!refusal.empty()) {
      EXPECT_THAT(refusal, HasSubstr("every layer would stay plain")) << name;
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
    options.factor_dtype = "float32";
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
  settings.any_fit = true;
  const fs::path conversion = convert_to("out", settings);
  ExportOptions options;
  options.factor_dtype = "float32";
  options.checkpoint = directory_ / "model";
  options.conversion = conversion;
  options.out = directory_ / "folded";
  options.format = ExportFormat::kFolded;
  EXPECT_THAT(error_of([&] { export_checkpoint(options); }), HasSubstr("use --export factored"));
}

}  // namespace
}  // namespace kvc
