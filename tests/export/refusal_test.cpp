#include <gmock/gmock.h>

#include "core/checkpoint.h"
#include "core/error.h"
#include "tests/export/export_fixture.h"
#include "tests/testing/error_of.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class ExportRefusal : public ExportFixture {
 protected:
  void expect_error(const ExportOptions& given, const std::string& part) const {
    EXPECT_THAT(error_of([&] { export_checkpoint(given); }), HasSubstr(part));
    EXPECT_FALSE(fs::exists(out_));
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("partial")));
    }
  }
  void expect_error(const std::string& part) const {
    expect_error(options(ExportFormat::kBoth), part);
  }
};

TEST_F(ExportRefusal, AConversionOfAnotherCheckpoint) {
  make(joint_plan());
  write_conversion_of(joint_plan(), std::string(64, '0'));
  expect_error("another checkpoint");
}

TEST_F(ExportRefusal, APlanOfAnotherShape) {
  make(joint_plan());
  KvPlan plan = joint_plan();
  plan.layers.push_back(KvSource::kPlain);
  write_conversion_of(plan, Checkpoint::open(checkpoint_).hash());
  expect_error("the plan is for 5 layers");
}

TEST_F(ExportRefusal, AMissingFactor) {
  skip_tensor_ = "kvconvert.groups.1.encoder";
  make(joint_plan());
  expect_error("kvconvert.groups.1.encoder is missing");
}

TEST_F(ExportRefusal, AFactorOfTheWrongShape) {
  make(joint_plan());
  KvPlan plan = joint_plan();
  plan.groups[0].rank = 10;  // the report's plan, not the tensors'
  fs::rename(conversion_ / "conversion.safetensors", directory_ / "kept");
  write_conversion_of(plan, Checkpoint::open(checkpoint_).hash());
  fs::rename(directory_ / "kept", conversion_ / "conversion.safetensors");
  expect_error("has shape [");
}

TEST_F(ExportRefusal, AFactorOfNoGroup) {
  make(joint_plan());
  KvPlan plan = joint_plan();
  plan.groups.pop_back();
  plan.layers[2] = KvSource::kPlain;
  fs::rename(conversion_ / "conversion.safetensors", directory_ / "kept");
  write_conversion_of(plan, Checkpoint::open(checkpoint_).hash());
  fs::rename(directory_ / "kept", conversion_ / "conversion.safetensors");
  expect_error("belongs to no part");
}

TEST_F(ExportRefusal, PlansWithNothingToFold) {
  KvPlan paired = plain_plan(synthetic_.num_layers, synthetic_.num_kv_heads, synthetic_.head_dim);
  paired.method = "minicache";
  make(paired);
  for (const auto& [format, name] :
       {std::pair(ExportFormat::kFolded, "folded"), std::pair(ExportFormat::kBoth, "both")}) {
    expect_error(options(format),
                 fmt::format("--export {}: the method minicache does not factorise", name));
  }
}

TEST_F(ExportRefusal, CompanionFilesThatCannotBeRead) {
  make(joint_plan());
  std::ofstream(checkpoint_ / "generation_config.json") << "{";
  expect_error("generation_config.json");
}

TEST_F(ExportRefusal, DamagedFactors) {
  make(joint_plan());
  const fs::path file = conversion_ / "conversion.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-4, std::ios::end);
  stream.write("\0\0\0\0", 4);
  stream.close();
  expect_error("conversion.safetensors: the tensors are damaged");
}

TEST_F(ExportRefusal, AChoiceThatCannotBe) {
  wide_["kvconvert.groups.1.encoder"] = 9;  // of 8 coefficients
  make(joint_plan());
  expect_error("kvconvert.groups.1.encoder.wide is 9, expected 0 to 8");
  wide_ = {{"kvconvert.groups.1.mean", 1}};
  write_conversion_of(joint_plan(), Checkpoint::open(checkpoint_).hash());
  expect_error("belongs to no part");
}

TEST_F(ExportRefusal, FactorsBeyondFloat16) {
  scale_ = 1e6;
  make(joint_plan());
  ExportOptions half = options(ExportFormat::kFactored);
  half.factor_dtype = "float16";
  expect_error(half, "--factor-dtype");
}

TEST_F(ExportRefusal, AnOutputInsideTheCheckpoint) {
  make(joint_plan());
  ExportOptions inside = options(ExportFormat::kFactored);
  inside.out = checkpoint_ / "out";
  inside.force = true;
  expect_error(inside, "choose another --out");
  EXPECT_FALSE(fs::exists(inside.out));
}

TEST_F(ExportRefusal, AnOutputThatWouldReplaceAnInput) {
  make(joint_plan());
  ExportOptions replacing = options(ExportFormat::kFactored);
  replacing.force = true;
  replacing.out = conversion_;
  expect_error(replacing, "choose another --out");
  replacing.out = checkpoint_;
  expect_error(replacing, "choose another --out");
  EXPECT_TRUE(fs::exists(checkpoint_ / "model.safetensors"));
}

TEST_F(ExportRefusal, AnExistingOutputWithoutForce) {
  make(joint_plan());
  export_as(ExportFormat::kFolded);
  const std::string before = read_all(out_ / "model.safetensors");
  EXPECT_THROW(export_as(ExportFormat::kFactored), Error);
  EXPECT_EQ(read_all(out_ / "model.safetensors"), before);
}

TEST_F(ExportRefusal, ACheckpointThatIsConvertedAlready) {
  make(joint_plan());
  export_as(ExportFormat::kFactored);
  ExportOptions again = options(ExportFormat::kFactored);
  again.checkpoint = out_;
  again.out = directory_ / "again";
  EXPECT_THROW(export_checkpoint(again), Error);
  EXPECT_FALSE(fs::exists(again.out));
}

TEST_F(ExportRefusal, LatentAttentionOfAConversion) {
  make(joint_plan());
  expect_error(options(ExportFormat::kMla), "use kvconvert --export mla");
}

TEST(ExportFormat, HasNames) {
  EXPECT_EQ(parse_export_format("both"), ExportFormat::kBoth);
  EXPECT_EQ(parse_export_format("mla"), ExportFormat::kMla);
  EXPECT_THROW(parse_export_format("onnx"), UsageError);
}

}  // namespace
}  // namespace kvc::testing
