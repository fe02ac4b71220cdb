// Principal directions: what they lose, how ranks are shared, what is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "calibrate/covariance.h"
#include "convert/convert.h"
#include "convert/latent/latent_plan.h"
#include "convert/latent/latent_settings.h"
#include "convert/plan.h"
#include "convert/principal/principal_plan.h"
#include "convert/run_statistics.h"
#include "core/conversion_file.h"
#include "fisher/metric.h"
#include "model/config.h"
#include "model/layer_stream.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::random_normal;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

// Tokens with decaying directions about a mean. [200, 24]
at::Tensor tokens_with_mean() {
  const at::Tensor rotation =
      std::get<0>(at::linalg_qr(random_normal({24, 24}, 2).to(at::kDouble)));
  return at::mm(random_normal({200, 24}, 1).to(at::kDouble) *
                    at::arange(24, at::kDouble).mul(-0.2).exp(),
                rotation) +
         random_normal({24}, 3).to(at::kDouble);
}

double squared_error(const at::Tensor& y, const PrincipalBasis& basis, std::int64_t rank) {
  const at::Tensor latent = at::mm(y, basis.encoder.narrow(0, 0, rank).t());
  return (y - at::mm(latent, basis.decoder.narrow(1, 0, rank).t())).square().sum().item<double>();
}

TEST(PrincipalBasis, LosesTheDroppedEigenvalues) {
  const at::Tensor y = tokens_with_mean();
  const at::Tensor gram = at::mm(y.t(), y);
  const PrincipalBasis basis = principal_basis(gram, {}, 24);
  double before = y.square().sum().item<double>();
  for (std::int64_t rank = 1; rank <= 24; ++rank) {
    const double error = squared_error(y, basis, rank);
    EXPECT_NEAR(error, basis.eigenvalues.slice(0, rank).sum().item<double>(), 1e-8);
    EXPECT_LE(error, before + 1e-9);
    before = error;
  }
  EXPECT_NEAR(before, 0, 1e-8);
}

// A request's own directions, one more of them, lose no more than any centred calibrated ones.
TEST(PrincipalBasis, OneMoreDirectionPaysForTheMean) {
  const at::Tensor y = tokens_with_mean();
  const at::Tensor centred = y - y.mean(0);
  const PrincipalBasis request = principal_basis(at::mm(y.t(), y), {}, 24);
  const PrincipalBasis calibrated = principal_basis(at::mm(centred.t(), centred), {}, 24);
  for (std::int64_t rank = 1; rank < 24; ++rank) {
    EXPECT_LE(squared_error(y, request, rank + 1), squared_error(centred, calibrated, rank) + 1e-8);
  }
}

TEST(PrincipalBasis, IsTheBestInItsMetric) {
  const at::Tensor y = tokens_with_mean();
  const at::Tensor covariance = at::mm(y.t(), y);
  const at::Tensor g = random_normal({60, 24}, 4).to(at::kDouble);
  const at::Tensor metric = at::mm(g.t(), g);
  const PrincipalBasis plain = principal_basis(covariance, {}, 24);
  const PrincipalBasis weighted = principal_basis(covariance, metric, 24);
  EXPECT_TRUE(
      tensors_close(at::mm(weighted.encoder, weighted.decoder), at::eye(24, at::kDouble), 1e-9));
  const auto loss = [&](const PrincipalBasis& basis, std::int64_t rank) {
    const at::Tensor lost = y - at::mm(at::mm(y, basis.encoder.narrow(0, 0, rank).t()),
                                       basis.decoder.narrow(1, 0, rank).t());
    return at::mm(lost, metric).mul(lost).sum().item<double>();
  };
  for (const std::int64_t rank : {2, 6, 12}) {
    EXPECT_NEAR(loss(weighted, rank), weighted.eigenvalues.slice(0, rank).sum().item<double>(),
                1e-8 * covariance.trace().item<double>() * metric.trace().item<double>());
    EXPECT_LT(loss(weighted, rank), loss(plain, rank));
  }
}

TEST(EnergyAllocation, TakesTheLargestFirst) {
  EXPECT_THAT(allocate_by_energy({{9, 8, 1, 1}, {7, 2, 2, 1}}, 4, {4, 4}, 1, {1, 1}),
              ElementsAre(2, 2));
  EXPECT_THAT(allocate_by_energy({{9, 8, 6, 5}, {4, 2, 2, 1}}, 5, {4, 4}, 1, {1, 1}),
              ElementsAre(4, 1));
  EXPECT_THAT(allocate_by_energy({{9, 8, 6, 5}, {4, 2, 2, 1}}, 5, {3, 4}, 1, {1, 1}),
              ElementsAre(3, 2));
  EXPECT_THAT(allocate_by_energy({{9, 0, 5, 5}, {4, 4, 2, 1}}, 6, {4, 4}, 2, {1, 1}),
              ElementsAre(4, 2));
  EXPECT_THAT(allocate_by_energy({{1, 0}, {1, 0}}, 9, {2, 2}, 1, {1, 1}), ElementsAre(2, 2));
}

TEST(EnergyAllocation, WeighsEnergyByBytes) {
  EXPECT_THAT(allocate_by_energy({{9, 8, 6, 5}, {8, 7, 5, 4}}, 4, {4, 4}, 1, {1, 1}),
              ElementsAre(2, 2));
  EXPECT_THAT(allocate_by_energy({{9, 8, 6, 5}, {8, 7, 5, 4}}, 4, {4, 4}, 1, {2, 1}),
              ElementsAre(1, 3));
}

ConvertSettings settings_of(const std::string& method) {
  ConvertSettings settings;
  settings.method = method;
  settings.layers_per_group = 2;
  settings.kept_ratio = 0.5;
  settings.window_tokens = 8;
  settings.context = 200;
  return settings;
}

class PrincipalConversion : public ::testing::Test {
 protected:
  void SetUp() override {
    use({.model_type = "qwen3"}, true);
    metric(Checkpoint::open(directory_ / "model"), tokens_, {joint_, 0}, directory_ / "metric.h5",
           false);
  }
  void use(const SyntheticCheckpoint& model, bool attention) {
    testing::write_synthetic_checkpoint(directory_ / "model", model);
    TokenSet tokens;
    tokens.sequences = testing::random_ids(6, 50, 96, 3);
    tokens.tokenizer_hash = std::string(64, 'a');
    tokens.source_hashes = {std::string(64, 'b')};
    std::filesystem::remove(directory_ / "tokens.h5");
    write_token_set(directory_ / "tokens.h5", tokens);
    tokens_ = tokens;
    covariance(Checkpoint::open(directory_ / "model"), tokens, {joint_, attention},
               directory_ / "covariance.h5", true);
  }
  Conversion convert_with(ConvertSettings settings) {
    resolve(settings);
    convert({.checkpoint = directory_ / "model",
             .tokens = directory_ / "tokens.h5",
             .calibration = {},
             .fisher = {},
             .covariance = directory_ / "covariance.h5",
             .metric = directory_ / "metric.h5",
             .out = directory_ / "out",
             .force = true},
            settings);
    Conversion conversion = read_conversion(directory_ / "out");
    conversion.plan.check();
    return conversion;
  }
  at::Tensor factor(const std::string& name) const {
    return testing::read_tensor(directory_ / "out" / "conversion.safetensors",
                                "kvconvert.groups." + name);
  }
  std::string refusal_of(ConvertSettings settings) {
    return error_of([&] { convert_with(settings); });
  }
  KvPlan plan_of(ConvertSettings settings) {
    resolve(settings);
    return make_plan(read_model_config(Checkpoint::open(directory_ / "model")), settings, false);
  }
  testing::TemporaryDirectory directory_;
  const JointOptions joint_{2, 4};
  TokenSet tokens_;
};

TEST_F(PrincipalConversion, WritesDirectionsOfKeysAndOfValues) {
  const Conversion conversion = convert_with(settings_of("xkv-static"));
  ASSERT_EQ(conversion.plan.groups.size(), 2);
  const LatentGroup& group = conversion.plan.groups[1];
  EXPECT_TRUE(group.split_kv);
  EXPECT_EQ(group.basis, LatentBasis::kCalibrated);
  EXPECT_GT(group.value_rank, group.key_rank);
  for (const auto& [part, rank] :
       {std::pair("key", group.key_rank), std::pair("value", group.value_rank)}) {
    const std::string prefix = fmt::format("1.{}.", part);
    const at::Tensor encoder = factor(prefix + "encoder");
    ASSERT_EQ(encoder.sizes(), (std::vector<std::int64_t>{rank, 32}));
    EXPECT_TRUE(
        tensors_close(at::mm(encoder, factor(prefix + "reconstruct_proj")), at::eye(rank), 1e-5));
  }
  EXPECT_EQ(factor("1.mean").size(0), 64);
  const GroupReport& report = conversion.report[1];
  EXPECT_LT(report.optimum_error, 1e-10);
  EXPECT_GT(report.energy_kept, 0.5);
  EXPECT_GT(report.key_error, 0);
}

TEST_F(PrincipalConversion, SharesAJointRankByEnergy) {
  const Conversion conversion = convert_with(settings_of("pca"));
  std::int64_t total = 0;
  for (const LatentGroup& group : conversion.plan.groups) {
    EXPECT_FALSE(group.split_kv);
    total += group.rank;
  }
  ConvertSettings uniform = settings_of("xkv-static");
  uniform.own<PrincipalSettings>().joint = true;
  const KvPlan plan = plan_of(uniform);
  EXPECT_EQ(total, plan.groups[0].rank + plan.groups[1].rank);
}

// What a metric weighs by decides what is kept; the errors of one do not rank another's.
TEST_F(PrincipalConversion, FollowsTheMetric) {
  const at::Tensor plain = [&] {
    convert_with(settings_of("pca"));
    return factor("0.encoder");
  }();
  for (const CacheMetric metric :
       {CacheMetric::kFisher, CacheMetric::kAttention, CacheMetric::kScaledAttention}) {
    ConvertSettings settings = settings_of("pca");
    settings.cache_metric = metric;
    const GroupReport report = convert_with(settings).report[0];
    EXPECT_LT(report.optimum_error, 1e-9) << to_string(metric);
    EXPECT_GT(report.energy_kept, 0.5) << to_string(metric);
    const at::Tensor encoder = factor("0.encoder");
    EXPECT_TRUE(tensors_close(at::mm(encoder, factor("0.reconstruct_proj")),
                              at::eye(encoder.size(0)), 1e-4))
        << to_string(metric);
    EXPECT_FALSE(encoder.sizes() == plain.sizes() && tensors_close(encoder, plain, 1e-2));
  }
  ConvertSettings settings = settings_of("xkv");
  settings.cache_metric = CacheMetric::kFisher;
  EXPECT_THAT(refusal_of(settings), HasSubstr("--metric"));
}

// More directions lose less, all of them nothing.
TEST_F(PrincipalConversion, LosesLessWithEveryDirection) {
  double before = 1;
  for (const std::int64_t rank : {2, 8, 12, 16}) {
    ConvertSettings settings = settings_of("xkv-static");
    settings.own<PrincipalSettings>().key_rank = settings.own<PrincipalSettings>().value_rank =
        rank;
    const GroupReport report = convert_with(settings).report[0];
    EXPECT_LT(report.key_error, before);
    before = report.key_error;
  }
  EXPECT_LT(before, 1e-3);  // of float32 directions
}

// The latents of each token behind the first four, layer by layer. [num_tokens, 4 * 16]
at::Tensor latents_before_norm(const Checkpoint& checkpoint, const TokenSet& tokens) {
  const ModelConfig config = read_model_config(checkpoint);
  LayerStream stream(checkpoint, config, tokens, {.batch_tokens = 1, .spill_directory = {}});
  std::vector<std::vector<at::Tensor>> layers(4);
  stream.advance(4, [&](const LayerActivations& activations) {
    layers[static_cast<std::size_t>(activations.layer)].push_back(
        at::linear(activations.hidden, activations.weights.mla.kv_a_proj.weight)
            .slice(0, 4)
            .slice(1, 0, 16));
  });
  std::vector<at::Tensor> columns;
  for (const auto& layer : layers) {
    columns.push_back(at::cat(layer));
  }
  return at::cat(columns, 1).to(at::kDouble);
}

TEST_F(PrincipalConversion, ReducesOwnLatentsBeforeTheirNorm) {
  std::filesystem::remove_all(directory_ / "model");
  use({.model_type = "deepseek_v2"}, false);
  ConvertSettings settings = settings_of("xkv-static");
  settings.own<PrincipalSettings>().key_rank = 5;
  settings.own<PrincipalSettings>().value_rank = 3;
  const Conversion conversion = convert_with(settings);
  ASSERT_EQ(conversion.plan.groups.size(), 2);
  EXPECT_EQ(conversion.plan.groups[1].rank, 16);
  const at::Tensor y =
      latents_before_norm(Checkpoint::open(directory_ / "model"), tokens_).narrow(1, 32, 32);
  EXPECT_TRUE(tensors_close(factor("1.mean"), y.mean(0).to(at::kFloat), 1e-5));
  const at::Tensor centred = y - y.mean(0);
  const at::Tensor values = at::linalg_svdvals(centred).square();
  const GroupReport& report = conversion.report[1];
  EXPECT_NEAR(report.energy_kept, (values.narrow(0, 0, 16).sum() / values.sum()).item<double>(),
              1e-6);
  const at::Tensor rebuilt = at::mm(at::mm(centred, factor("1.encoder").to(at::kDouble).t()),
                                    factor("1.reconstruct_proj").to(at::kDouble).t());
  EXPECT_NEAR((centred - rebuilt).square().sum().item<double>(),
              values.slice(0, 16).sum().item<double>(), 1e-4 * values.sum().item<double>());
}

TEST_F(PrincipalConversion, LeavesRequestsTheirOwn) {
  const Conversion conversion = convert_with(settings_of("xkv"));
  ASSERT_TRUE(conversion.plan.request.has_value());
  EXPECT_TRUE(has_basis(conversion.plan, LatentBasis::kRequest));
  EXPECT_EQ(conversion.report.size(), 2);
}

// Ranks are the widest within the target, bases of requests counted.
TEST_F(PrincipalConversion, MeetsTheTargetAtTheContext) {
  for (const char* method : {"xkv-static", "xkv", "pca"}) {
    for (const char* dtype : {"", "int8"}) {
      ConvertSettings settings = settings_of(method);
      settings.kv_dtype = dtype;
      settings.context = 2000;
      settings.layers_per_group = 4;
      const KvPlan plan = plan_of(settings);
      EXPECT_LE(plan.compression.target_kept_ratio, 0.5) << method << dtype;
      // All directions as codes take less than a third of the checkpoint's float32 cache.
      EXPECT_GT(plan.compression.target_kept_ratio, *dtype == '\0' ? 0.45 : 0.2) << method << dtype;
    }
  }
}

// Values have all of their directions then, and keys what is left.
TEST_F(PrincipalConversion, KeepsNearlyAllWhereThatIsAsked) {
  ConvertSettings settings = settings_of("xkv-static");
  settings.kept_ratio = 0.96;
  settings.context = 20000;
  const KvPlan plan = plan_of(settings);
  EXPECT_GT(plan.compression.target_kept_ratio, 0.9);
  const std::int64_t widest = plan.groups[0].num_layers * plan.kv_dim();
  EXPECT_EQ(plan.groups[0].value_rank, widest);
  EXPECT_LT(plan.groups[0].key_rank, widest);
}

TEST_F(PrincipalConversion, RefusesWhatCannotBe) {
  ConvertSettings settings = settings_of("xkv-static");
  settings.kept_ratio = 0.04;
  EXPECT_THAT(error_of([&] { plan_of(settings); }),
              HasSubstr("--kept-ratio 0.04 cannot be reached"))
      << "sinks and window alone take 0.06";
  settings = settings_of("xkv");
  settings.own<PrincipalSettings>().recompress_every = 64;
  EXPECT_THAT(refusal_of(settings), HasSubstr("--later"));
  settings = settings_of("xkv");
  settings.own<PrincipalSettings>().key_rank = 8;
  EXPECT_THAT(refusal_of(settings), HasSubstr("--value-rank 0"));
  settings = settings_of("xkv-static");
  settings.own<RankSettings>().allocation = RankAllocation::kFisher;
  EXPECT_THAT(refusal_of(settings), HasSubstr("uniform or energy"));
}

}  // namespace
}  // namespace kvc
