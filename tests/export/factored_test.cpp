#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/kv_plan_json.h"
#include "model/coefficient_codes.h"
#include "model/config.h"
#include "tests/export/export_fixture.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

using ::testing::ElementsAreArray;

namespace fs = std::filesystem;

class FactoredExport : public ExportFixture {
 protected:
  // A factor as the conversion has it, and as an export of this --factor-dtype does.
  at::Tensor given_encoder() const {
    return read_tensor(conversion_ / "conversion.safetensors", "kvconvert.groups.1.encoder");
  }
  at::Tensor exported_encoder(const char* factor_dtype) const {
    ExportOptions exporting = options(ExportFormat::kFactored);
    exporting.factor_dtype = factor_dtype;
    export_checkpoint(exporting);
    return read_tensor(out_ / "model.safetensors", "kvconvert.groups.1.encoder");
  }

  std::vector<std::string> expect_originals_identical() const {
    const Checkpoint before = Checkpoint::open(checkpoint_), after = Checkpoint::open(out_);
    std::vector<std::string> missing;
    for (const std::string& name : before.tensor_names()) {
      if (!after.contains(name)) {
        missing.push_back(name);
        continue;
      }
      EXPECT_EQ(before.info(name).dtype, after.info(name).dtype) << name;
      EXPECT_EQ(before.info(name).shape, after.info(name).shape) << name;
      EXPECT_TRUE(std::ranges::equal(before.bytes(name), after.bytes(name))) << name;
    }
    return missing;
  }

  // Group 0's factor, as the conversion wrote it.
  bool factor_identical(const std::string& name) const {
    const std::string tensor = "kvconvert.groups.0." + name;
    return tensors_identical(read_tensor(out_ / "model.safetensors", tensor),
                             read_tensor(conversion_ / "conversion.safetensors", tensor));
  }
};

TEST_F(FactoredExport, JointGroupsKeepEveryOriginalTensor) {
  synthetic_.dtype = "bfloat16";
  make(joint_plan());
  export_as(ExportFormat::kFactored);
  EXPECT_THAT(expect_originals_identical(), ElementsAreArray(std::vector<std::string>{}));
  for (const char* name : {"encoder", "merged_reconstruct_proj"}) {
    EXPECT_TRUE(factor_identical(name)) << name;
  }
  // Least squares over exact prefill rebuilds no token from its layer's own latent.
  EXPECT_FALSE(Checkpoint::open(out_).contains("kvconvert.groups.0.latent_proj"));
  EXPECT_FALSE(Checkpoint::open(out_).contains("kvconvert.groups.0.reconstruct_proj"));
}

TEST_F(FactoredExport, LatentsOfSingleLayersNeedTheirFactors) {
  KvPlan plan = joint_plan();
  plan.compression.unmerged = UnmergedForm::kLatent;
  make(plan);
  export_as(ExportFormat::kFactored);
  for (const char* name :
       {"latent_proj", "encoder", "reconstruct_proj", "merged_reconstruct_proj"}) {
    EXPECT_TRUE(factor_identical(name)) << name;
  }
}

TEST_F(FactoredExport, SplitGroupsReplaceTheirProjectionsButNotTheBiases) {
  synthetic_.model_type = "qwen2";
  make(split_plan());
  export_as(ExportFormat::kFactored);
  std::vector<std::string> expected;
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* projection : {"k_proj", "v_proj"}) {
      expected.push_back(fmt::format("model.layers.{}.self_attn.{}.weight", layer, projection));
    }
  }
  EXPECT_THAT(expect_originals_identical(), ElementsAreArray(expected));
  EXPECT_TRUE(Checkpoint::open(out_).contains("model.layers.0.self_attn.k_proj.bias"));
}

TEST_F(FactoredExport, ConfigKeepsTheSourcesKeysInOrder) {
  make(joint_plan());
  export_as(ExportFormat::kFactored);
  const Json source = read_json(checkpoint_ / "config.json");
  const Json result = read_json(out_ / "config.json");
  std::vector<std::string> keys, expected;
  for (const auto& [key, value] : source.items()) {
    expected.push_back(key);
    if (key != "model_type") {
      EXPECT_EQ(result[key].dump(), value.dump()) << key;
    }
  }
  expected.push_back("kvconvert");
  for (const auto& [key, value] : result.items()) {
    keys.push_back(key);
  }
  EXPECT_EQ(keys, expected);
  EXPECT_EQ(result["model_type"], "kvconvert_llama");
}

TEST_F(FactoredExport, ConfigSaysWhatTheRuntimeNeeds) {
  make(joint_plan());
  export_as(ExportFormat::kFactored);
  const Json config = read_json(out_ / "config.json");
  const Json& kvconvert = config["kvconvert"];
  EXPECT_EQ(kvconvert["format"], 1);
  EXPECT_EQ(kvconvert["family"], "llama");
  EXPECT_EQ(to_json(kv_plan_from_json(kvconvert["plan"], "plan")), to_json(joint_plan()));
  EXPECT_EQ(kvconvert["settings"]["method"], "commonkv");
  EXPECT_EQ(kvconvert["report"][0]["energy_kept"], 0.75);
  EXPECT_EQ(kvconvert["calibration_hashes"][0], std::string(64, 'c'));
  EXPECT_EQ(kvconvert["provenance"]["checkpoint_hash"], Checkpoint::open(checkpoint_).hash());
  EXPECT_EQ(parse_model_config(config, "config").arch->model_type, "llama");
}

TEST_F(FactoredExport, FactorsTakeTheRequestedType) {
  make(joint_plan());
  EXPECT_TRUE(tensors_identical(exported_encoder("bfloat16"), given_encoder().to(at::kBFloat16)));
}

TEST_F(FactoredExport, FactorsAreHalvedWhereTheirPrecisionAllowsIt) {
  make(joint_plan());
  const at::Tensor stored = exported_encoder("auto");
  EXPECT_EQ(stored.scalar_type(), at::kHalf);
  EXPECT_TRUE(tensors_identical(stored, given_encoder().to(at::kHalf)));
}

class FactorsOfScale : public FactoredExport, public ::testing::WithParamInterface<double> {};

TEST_P(FactorsOfScale, StayAsTheyAreWhereFloat16CannotHoldThem) {
  scale_ = GetParam();
  make(joint_plan());
  EXPECT_EQ(exported_encoder("auto").scalar_type(), at::kFloat);
}

INSTANTIATE_TEST_SUITE_P(OutOfRange, FactorsOfScale, ::testing::Values(1e6, 1e-7));

TEST_F(FactoredExport, MatricesTake8BitsWhereTheConversionSaysSo) {
  constexpr const char* kEncoder = "kvconvert.groups.1.encoder";
  wide_[kEncoder] = 3;
  make(joint_plan());
  export_as(ExportFormat::kFactored);
  EXPECT_FALSE(Checkpoint::open(out_).contains("kvconvert.groups.1.encoder.wide"));
  EXPECT_FALSE(Checkpoint::open(out_).contains("kvconvert.groups.1.encoder.scale"));
  std::filesystem::remove_all(out_);
  ExportOptions exporting = options(ExportFormat::kFactored);
  exporting.factor_dtype = "auto";
  export_checkpoint(exporting);
  const Checkpoint checkpoint = Checkpoint::open(out_);
  EXPECT_EQ(checkpoint.info(kEncoder).dtype, Dtype::kI8);
  EXPECT_EQ(checkpoint.info("kvconvert.groups.1.encoder.low").shape[0], 3);
  EXPECT_EQ(checkpoint.info("kvconvert.groups.0.encoder").dtype, Dtype::kF16);
  const at::Tensor given = given_encoder();
  const at::Tensor read = load_coefficients(checkpoint, kEncoder, given.sizes().vec(),
                                            CoefficientAxis::kRows, at::kFloat);
  const at::Tensor step = given.abs().amax(1, true) / 127;
  EXPECT_TRUE(((read - given).abs() <= 0.501 * step).all().item<bool>());
  EXPECT_TRUE(((read - given).abs() <= 0.01 * step).narrow(0, 0, 3).all().item<bool>());
}

TEST_F(FactoredExport, AllMatricesTake8BitsIfAskedFor) {
  wide_["kvconvert.groups.1.encoder"] = 3;
  make(joint_plan());
  ExportOptions exporting = options(ExportFormat::kFactored);
  exporting.factor_dtype = "int8";
  export_checkpoint(exporting);
  const Checkpoint checkpoint = Checkpoint::open(out_);
  for (const char* name : {"encoder", "merged_reconstruct_proj"}) {
    for (const char* group : {"0.", "1."}) {
      const std::string matrix = std::string("kvconvert.groups.") + group + name;
      EXPECT_EQ(checkpoint.info(matrix).dtype, Dtype::kI8);
      EXPECT_TRUE(checkpoint.contains(scale_name(matrix)));
      EXPECT_FALSE(checkpoint.contains(low_name(matrix)));
    }
  }
}

TEST_F(FactoredExport, DropsACacheThatCannotHoldLatents) {
  make(joint_plan());
  write_all(checkpoint_ / "generation_config.json",
            "{\n  \"cache_implementation\": \"static\",\n  \"temperature\": 0.60\n}\n");
  export_as(ExportFormat::kBoth);
  const Json factored = read_json(out_ / "factored" / "generation_config.json");
  EXPECT_FALSE(factored.contains("cache_implementation"));
  EXPECT_EQ(factored["temperature"], 0.6);
  EXPECT_EQ(read_all(out_ / "folded" / "generation_config.json"),
            read_all(checkpoint_ / "generation_config.json"));
}

TEST_F(FactoredExport, HoldsNothingButKnownFiles) {
  make(joint_plan());
  write_all(checkpoint_ / "modeling_x.py", "import os\n");
  write_all(checkpoint_ / "optimizer.pt", "x");
  write_all(checkpoint_ / "LICENSE", "free\n");
  export_as(ExportFormat::kFactored);
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(out_)) {
    files.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(files,
              ::testing::UnorderedElementsAre("LICENSE", "config.json", "model.safetensors"));
}

TEST_F(FactoredExport, TwiceGivesTheSameBytes) {
  make(joint_plan());
  export_as(ExportFormat::kFactored);
  const std::string tensors = read_all(out_ / "model.safetensors");
  const std::string config = read_all(out_ / "config.json");
  ExportOptions again = options(ExportFormat::kFactored);
  again.force = true;
  export_checkpoint(again);
  EXPECT_EQ(read_all(out_ / "model.safetensors"), tensors);
  EXPECT_EQ(read_all(out_ / "config.json"), config);
}

}  // namespace
}  // namespace kvc::testing
