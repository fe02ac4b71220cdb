#include "convert/convert.h"
#include "convert/latent/latent_settings.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "convert/latent/group_svd.h"
#include "core/conversion_file.h"
#include "core/error.h"
#include "core/hdf5.h"
#include "model/weights.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using testing::read_tensor;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
namespace fs = std::filesystem;

std::string file_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A tiny checkpoint, its tokens, and statistics written by hand.
class Convert : public ::testing::Test {
 protected:
  void write_model(SyntheticCheckpoint options) {
    options_ = options;
    testing::write_synthetic_checkpoint(directory_ / "model", options);
    tokens_.sequences = testing::random_ids(5, 40, options.vocab_size, 3);
    tokens_.tokenizer_hash = std::string(64, 'a');
    tokens_.source_hashes = {std::string(64, 'b')};
    write_token_set(directory_ / "tokens.h5", tokens_);
    write_calibration();
    write_fisher();
  }

  fs::path convert_to(const std::string& name, ConvertSettings settings, bool force = true) {
    resolve(settings);
    convert({.checkpoint = directory_ / "model",
             .tokens = directory_ / "tokens.h5",
             .calibration = directory_ / "calibration.h5",
             .fisher = directory_ / "fisher.h5",
             .out = directory_ / name,
             .force = force},
            settings);
    return directory_ / name;
  }

  at::Tensor projection(int layer, const char* name) const {
    return read_tensor(directory_ / "model" / "model.safetensors",
                       fmt::format("model.layers.{}.self_attn.{}.weight", layer, name))
        .to(at::kFloat);
  }
  at::Tensor factor(const fs::path& conversion, const std::string& name) const {
    return read_tensor(conversion / "conversion.safetensors", "kvconvert.groups." + name);
  }
  at::Tensor gram(int layer) const {
    const at::Tensor x = testing::random_normal({3 * options_.hidden_size, options_.hidden_size},
                                                100 + static_cast<std::uint64_t>(layer))
                             .to(at::kDouble)
                             .mul(at::linspace(2, 0.2, options_.hidden_size, at::kDouble));
    return at::mm(x.t(), x);
  }
  std::int64_t kv_dim() const { return options_.num_kv_heads * options_.head_dim; }

  testing::TemporaryDirectory directory_;
  SyntheticCheckpoint options_;
  TokenSet tokens_;

 private:
  Provenance provenance(const char* kind) const {
    Provenance provenance;
    provenance.kind = kind;
    provenance.checkpoint_hash = Checkpoint::open(directory_ / "model").hash();
    provenance.tokens_hash = tokens_.hash();
    provenance.options = Json::object();
    return provenance;
  }
  void write_calibration() const {
    Hdf5Writer file(directory_ / "calibration.h5");
    write_provenance(file, provenance("calibration"));
    const std::vector<std::int64_t> count = {3 * options_.hidden_size};
    file.dataset("/num_tokens", count, {1});
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      const at::Tensor sum = gram(layer).contiguous();
      file.dataset(fmt::format("/layers/{}/gram", layer),
                   std::span(sum.const_data_ptr<double>(), static_cast<std::size_t>(sum.numel())),
                   {options_.hidden_size, options_.hidden_size});
    }
    file.close();
  }
  void write_fisher() const {
    Hdf5Writer file(directory_ / "fisher.h5");
    write_provenance(file, provenance("fisher"));
    const std::vector<std::int64_t> count = {2};
    file.dataset("/num_sequences", count, {1});
    std::vector<double> channel;  // layer l has score l + 1, spread evenly
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      channel.insert(channel.end(), static_cast<std::size_t>(2 * kv_dim()),
                     2.0 * (layer + 1) / static_cast<double>(2 * kv_dim()));
    }
    file.dataset("/channel_sum", channel, {options_.num_layers, 2, kv_dim()});
    file.close();
  }
};

TEST_F(Convert, WritesAllFactorsOfEveryGroup) {
  write_model({.num_layers = 5});
  ConvertSettings settings;
  settings.own<LatentSettings>().rank = 0.5;
  settings.layers_per_group = 2;
  const fs::path out = convert_to("out", settings);
  const Conversion conversion = read_conversion(out);
  ASSERT_EQ(conversion.plan.groups.size(), 3u);  // 2 + 2 + 1 layers
  EXPECT_EQ(conversion.report[2].num_layers, 1);
  EXPECT_EQ(conversion.calibration_hashes, tokens_.source_hashes);
  for (int group = 0; group < 3; ++group) {
    const std::string name = std::to_string(group) + ".";
    const std::int64_t rows =
        2 * conversion.plan.groups[static_cast<std::size_t>(group)].num_layers * kv_dim();
    EXPECT_EQ(factor(out, name + "latent_proj").sizes(), at::IntArrayRef({16, 32}));
    EXPECT_EQ(factor(out, name + "encoder").sizes(), at::IntArrayRef({16, rows}));
    EXPECT_EQ(factor(out, name + "reconstruct_proj").sizes(), at::IntArrayRef({rows, 16}));
    EXPECT_EQ(factor(out, name + "merged_reconstruct_proj").sizes(), at::IntArrayRef({rows, 16}));
    const GroupReport& report = conversion.report[static_cast<std::size_t>(group)];
    EXPECT_LT(report.optimum_error, 1e-6);
    EXPECT_GT(report.energy_kept, 0.5);
    EXPECT_GT(report.merged_key_error, 0);
    EXPECT_EQ(report.singular_values.size(), 16u);
  }
  // Nothing but the two files is left.
  EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 2);
}

TEST_F(Convert, FullRankFactorsAreTheWeights) {
  write_model({.model_type = "qwen2"});
  for (const Factor factor_kind : {Factor::kPlain, Factor::kWhitened}) {
    ConvertSettings settings;
    settings.own<LatentSettings>().rank = 1;
    settings.own<LatentSettings>().merge = MergeRule::kNone;
    settings.own<LatentSettings>().factor = factor_kind;
    const fs::path out = convert_to(factor_kind == Factor::kPlain ? "plain" : "whitened", settings);
    const at::Tensor folded =
        at::mm(factor(out, "0.reconstruct_proj"), factor(out, "0.latent_proj"));
    for (int layer = 0; layer < 4; ++layer) {
      EXPECT_TRUE(tensors_close(folded.narrow(0, 2 * layer * kv_dim(), kv_dim()),
                                projection(layer, "k_proj"), 1e-5));
      EXPECT_TRUE(tensors_close(folded.narrow(0, (2 * layer + 1) * kv_dim(), kv_dim()),
                                projection(layer, "v_proj"), 1e-5));
    }
    // Biases are no part of the factorisation: the errors on calibration data vanish with them.
    EXPECT_LT(read_conversion(out).report[0].key_error, 1e-5);
  }
}

TEST_F(Convert, FullRankLeastSquaresMergingIsExactWhereRowsAreFew) {
  write_model({.num_layers = 2, .hidden_size = 64, .num_kv_heads = 1});
  ConvertSettings settings;  // 2 * 2 * 8 = 32 rows < hidden_size: the latent holds y itself
  settings.own<LatentSettings>().rank = 1;
  settings.own<LatentSettings>().factor = Factor::kPlain;
  const Conversion conversion = read_conversion(convert_to("out", settings));
  EXPECT_EQ(conversion.plan.groups[0].rank, 32);
  EXPECT_LT(conversion.report[0].merged_key_error, 1e-5);
  EXPECT_LT(conversion.report[0].merged_value_error, 1e-5);
}

TEST_F(Convert, RefittingLowersTheReportedMergedErrors) {
  write_model({});
  for (const MergeRule rule : {MergeRule::kMean, MergeRule::kFisher, MergeRule::kLs}) {
    ConvertSettings settings;
    settings.own<LatentSettings>().rank = 0.5;
    settings.own<LatentSettings>().merge = rule;
    const Conversion with = read_conversion(convert_to("with", settings));
    settings.own<LatentSettings>().refit = false;
    const fs::path plain = convert_to("without", settings);
    const Conversion without = read_conversion(plain);
    EXPECT_LT(with.report[0].merged_key_error, without.report[0].merged_key_error);
    EXPECT_EQ(with.report[0].key_error, without.report[0].key_error);
    EXPECT_THAT(file_bytes(plain / "conversion.safetensors"),
                ::testing::Not(HasSubstr("merged_reconstruct_proj")));
    fs::remove_all(directory_ / "with");
    fs::remove_all(plain);
  }
}

TEST_F(Convert, TheJointBasisHasTheSmallestMergedError) {
  write_model({});
  ConvertSettings settings;
  settings.own<LatentSettings>().rank = 0.5;
  settings.own<LatentSettings>().ls_fisher_weights = false;
  settings.own<LatentSettings>().factor = Factor::kWhitened;
  const GroupReport whitened = read_conversion(convert_to("whitened", settings)).report[0];
  settings.own<LatentSettings>().factor = Factor::kJoint;
  const GroupReport joint = read_conversion(convert_to("joint", settings)).report[0];
  EXPECT_LT(joint.merged_key_error + joint.merged_value_error,
            whitened.merged_key_error + whitened.merged_value_error);
  EXPECT_LT(joint.optimum_error, 1e-6);
}

TEST_F(Convert, StoresTheMergeWeightsOfTheRule) {
  write_model({.num_layers = 2});
  ConvertSettings settings;
  settings.own<LatentSettings>().rank = 0.5;
  settings.own<LatentSettings>().merge = MergeRule::kFisher;
  const Conversion conversion = read_conversion(convert_to("out", settings));
  EXPECT_THAT(conversion.plan.groups[0].merge_weights,
              ::testing::ElementsAre(::testing::DoubleNear(1. / 3, 1e-12),
                                     ::testing::DoubleNear(2. / 3, 1e-12)));
}

TEST_F(Convert, PaluIsASplitGroupOfOneLayer) {
  write_model({.num_layers = 2});
  ConvertSettings settings;
  settings.method = "palu";
  settings.own<LatentSettings>().rank = 0.5;
  const fs::path out = convert_to("out", settings, false);
  const LatentGroup group = read_conversion(out).plan.groups.at(1);
  EXPECT_TRUE(group.split_kv);
  EXPECT_EQ(group.key_rank, 8);
  // The same factorisation as a group of one layer's keys alone.
  const at::Tensor metric = damped_metric(gram(1).div(3.0 * 32));
  const GroupFactorization keys =
      factorize_group(projection(1, "k_proj").to(at::kDouble), metric, group.key_rank);
  EXPECT_TRUE(
      tensors_close(at::mm(factor(out, "1.key.reconstruct_proj"), factor(out, "1.key.latent_proj")),
                    at::mm(keys.reconstruct_proj, keys.latent_proj).to(at::kFloat), 1e-5));
}

TEST_F(Convert, PaluHeadGroupsAreBlocks) {
  write_model({.num_layers = 1, .num_kv_heads = 4});
  ConvertSettings settings;
  settings.method = "palu";
  settings.own<LatentSettings>().rank = 0.75;
  settings.own<LatentSettings>().heads_per_group = 2;  // two groups of 16 channels, rank 12 each
  const fs::path out = convert_to("out", settings, false);
  const at::Tensor b = factor(out, "0.value.reconstruct_proj");
  EXPECT_EQ(b.sizes(), at::IntArrayRef({32, 24}));
  EXPECT_EQ(b.narrow(0, 0, 16).narrow(1, 12, 12).abs().max().item<float>(), 0);
  EXPECT_EQ(b.narrow(0, 16, 16).narrow(1, 0, 12).abs().max().item<float>(), 0);
  EXPECT_GT(b.narrow(0, 16, 16).narrow(1, 12, 12).abs().min().item<float>(), 0);
  EXPECT_GT(read_conversion(out).report[0].value_error, 0);
}

TEST_F(Convert, EqualInputsGiveEqualBytes) {
  write_model({});
  ConvertSettings settings;
  settings.own<LatentSettings>().rank = 0.5;
  const fs::path a = convert_to("a", settings), b = convert_to("b", settings);
  for (const char* name : {"conversion.h5", "conversion.safetensors"}) {
    EXPECT_EQ(file_bytes(a / name), file_bytes(b / name)) << name;
  }
}

TEST_F(Convert, RefusesStatisticsOfAnotherCheckpoint) {
  write_model({});
  fs::remove_all(directory_ / "model");
  testing::write_synthetic_checkpoint(directory_ / "model", {.seed = 9});
  ConvertSettings settings;
  settings.own<LatentSettings>().rank = 0.5;
  EXPECT_THROW(convert_to("out", settings), Error);
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

TEST_F(Convert, RefusesAnExistingOutput) {
  write_model({});
  ConvertSettings settings;
  settings.own<LatentSettings>().rank = 0.5;
  fs::create_directory(directory_ / "out");
  EXPECT_THROW(convert_to("out", settings, false), Error);
}

}  // namespace
}  // namespace kvc
