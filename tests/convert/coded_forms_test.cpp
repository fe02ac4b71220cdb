// Forms of the keys' transform: their bases, their choice, their conversions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "convert/coded/block_basis.h"
#include "convert/coded/coded_plan.h"
#include "convert/coded/form_choice.h"
#include "core/error.h"
#include "model/fused_kv.h"
#include "model/key_bases.h"
#include "tests/convert/coded_fixture.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

using testing::CodedConversion;
using ::testing::ElementsAre;
using testing::random_normal;
using testing::tensors_close;
using testing::total_error;

RunStatistics random_statistics(std::int64_t n) {
  const auto positive = [&](std::uint64_t seed) {
    const at::Tensor x = random_normal({2 * n, n}, seed).to(at::kDouble);
    return at::mm(x.t(), x) / static_cast<double>(2 * n);
  };
  return {100, random_normal({n}, 3).to(at::kDouble), positive(1), positive(2)};
}

ModelConfig tiny_config() {
  return parse_model_config(testing::synthetic_config({}), "config.json");
}

TEST(BlockBasis, SeveralBasesSpanTheirOwnChannels) {
  const ModelConfig config = tiny_config();
  const RunStatistics statistics = random_statistics(config.head_dim);
  for (const int bases : {2, 4}) {
    const CodedBlock block{.head = 0, .part = CodedParts::kKeys, .bases = bases};
    const BlockBasis basis = block_basis(statistics, block, config, at::kCPU);
    const at::Tensor channels = key_basis_channels(config, 0, bases);
    EXPECT_TRUE(tensors_close(at::mm(basis.encoder, basis.decoder),
                              at::eye(config.head_dim, at::kDouble), 1e-9));
    EXPECT_TRUE((basis.variances.diff() <= 0).all().item<bool>());
    const SplitTransform split = split_bases({basis.encoder, basis.decoder}, channels);
    EXPECT_EQ(split.transform.encoder.size(1), config.head_dim / bases);
    const BasisTransform joined = join_bases(
        {{split.transform.encoder.to(at::kFloat), split.transform.decoder.to(at::kFloat)},
         split.basis},
        channels, "basis");
    EXPECT_TRUE(tensors_close(joined.encoder, basis.encoder.to(at::kFloat), 0));
    EXPECT_TRUE(tensors_close(joined.decoder, basis.decoder.to(at::kFloat), 0));
    const at::Tensor wrong = split.basis + static_cast<double>(bases);
    EXPECT_THROW(join_bases({split.transform, wrong}, channels, "basis"), Error);
    EXPECT_THROW(join_bases({split.transform, at::zeros_like(split.basis)}, channels, "basis"),
                 Error);
  }
}

// One scale for both channels of a pair, so that the turn of a position changes no error.
TEST(BlockBasis, RotatedKeysHaveOneScaleForEachPair) {
  const ModelConfig config = tiny_config();
  const CodedBlock block{.head = 0, .part = CodedParts::kKeys, .bases = 4, .rotated = true};
  RunStatistics statistics = random_statistics(config.head_dim);
  statistics.mean.zero_();
  statistics.mean[1] = 5;  // of the second pair
  const BlockBasis basis = block_basis(statistics, block, config, at::kCPU);
  EXPECT_EQ(basis.encoder.count_nonzero().item<std::int64_t>(), config.head_dim);
  const at::Tensor scale = basis.encoder.abs().amax(0);
  const ChannelPairs pairs = channel_pairs(config, 0);
  EXPECT_TRUE(tensors_close(scale.index_select(0, pairs.first), scale.index_select(0, pairs.second),
                            1e-12));
  EXPECT_EQ(basis.mean.count_nonzero().item<std::int64_t>(), 1);
  const at::Tensor samples = random_normal({50, config.head_dim}, 7);
  const at::Tensor turned = turned_samples(samples, block, config);
  const auto norms = [&](const at::Tensor& of) {
    return of.index_select(1, pairs.first).square() + of.index_select(1, pairs.second).square();
  };
  EXPECT_TRUE(tensors_close(norms(turned), norms(samples), 1e-4));
  EXPECT_FALSE(tensors_close(turned, samples, 1));
  // YaRN's rotations scale.
  ModelConfig scaled = config;
  scaled.ropes[0].attention_factor = 1.5;
  EXPECT_TRUE(tensors_close(turned_samples(samples, block, scaled), turned * 1.5, 1e-5));
}

FormOption option(KeyTransform form, double products, std::vector<double> variances) {
  return {.form = {.keys = form}, .variances = std::move(variances), .products = products};
}

TEST(FormChoice, ExpectedErrorByHand) {
  // 2 bits: level 1 takes log2(16) / 2 = 2 bits of the first coefficient, the others are left out.
  const std::vector<FormOptions> options = {{option(KeyTransform::kFull, 1, {16, 1, 0.25})}};
  EXPECT_NEAR(expected_error(options, {0}, 2), 1 + 1 + 0.25, 1e-9);
}

TEST(FormChoice, TheFastestFormThatIsGoodEnough) {
  const std::vector<double> full = {64, 1}, near = {32, 2}, far = {8, 8};
  const std::vector<FormOptions> options(
      3, {option(KeyTransform::kRotated, 0, far), option(KeyTransform::kPairs, 10, near),
          option(KeyTransform::kFull, 100, full)});
  const double best = expected_error(options, {2, 2, 2}, 18);
  EXPECT_LT(expected_error(options, {1, 1, 1}, 18), kMostError * best);
  // All of one form.
  const std::vector<std::size_t> choice = fastest_forms(options, 18);
  EXPECT_THAT(choice, ::testing::Each(choice.front()));
  EXPECT_LE(expected_error(options, choice, 18), kMostError * best);
}

// The most bits saved for the products, every combination tried.
TEST(FormChoice, SharesProductsWhereTheySaveMost) {
  std::vector<FormOptions> options;
  for (const double gain : {1.0, 3.0, 2.0}) {
    options.push_back({option(KeyTransform::kRotated, 0, {16, 16}),
                       option(KeyTransform::kPairs, 10, {16, 16 / std::exp2(gain)}),
                       option(KeyTransform::kFull, 100, {16, 16 / std::exp2(2 * gain)})});
  }
  const auto forms_at = [&](double products) { return share_products(options, 60, products); };
  EXPECT_THAT(forms_at(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(forms_at(4), ElementsAre(0, 1, 0));
  EXPECT_THAT(forms_at(10), ElementsAre(1, 1, 1));
  EXPECT_THAT(forms_at(41), ElementsAre(1, 2, 1));
  EXPECT_THAT(forms_at(100), ElementsAre(2, 2, 2));
}

TEST_F(CodedConversion, FormsLoseMoreTheFasterTheyAre) {
  write_model({.model_type = "qwen3"});
  double before = 0;
  for (const char* form : {"full", "keys", "blocks:2", "pairs", "rotated"}) {
    ConvertSettings chosen = settings(0.25, "head");
    chosen.own<CodedSettings>().form = form;
    const std::filesystem::path out = convert_to(form, chosen);
    const Conversion conversion = read_conversion(out);
    EXPECT_NO_THROW(conversion.plan.check());
    EXPECT_LE(coded_kept_ratio(*config_, conversion.plan, 2048), 0.25);
    EXPECT_GT(coded_kept_ratio(*config_, conversion.plan, 2048), 0.245) << form;
    const double predicted = total_error(conversion, &CodedReport::predicted_error);
    EXPECT_NEAR(total_error(conversion, &CodedReport::measured_error), predicted, 0.2 * predicted);
    EXPECT_GT(predicted, 0.97 * before) << form;
    before = predicted;
    for (std::size_t i = 0; i < conversion.plan.coded.size(); ++i) {
      const CodedBlock& block = conversion.plan.coded[i];
      EXPECT_EQ(factor(out, i, "encoder").size(1),
                coded_channels(conversion.plan, block) / block.bases);
    }
  }
}

TEST_F(CodedConversion, ProductsBuyForms) {
  write_model({});
  const auto error = [&](std::int64_t products) {
    ConvertSettings chosen = settings(0.25, "head");
    chosen.own<CodedSettings>().form = "auto";
    chosen.own<CodedSettings>().products = products;
    const Conversion conversion = read_conversion(convert_to(fmt::format("p{}", products), chosen));
    std::int64_t spent = 0;
    for (const CodedBlock& block : conversion.plan.coded) {
      spent += block.rotated || !block.has_keys()
                   ? 0
                   : config_->head_dim * config_->head_dim / block.bases;
    }
    EXPECT_LE(spent, products * config_->num_layers * config_->num_kv_heads);
    return total_error(conversion, &CodedReport::predicted_error);
  };
  const double none = error(1), some = error(20), all = error(1000);
  EXPECT_LT(some, none);
  EXPECT_LT(all, some);
}

ConvertSettings zoo_settings(const char* form) {
  ConvertSettings settings;
  settings.method = "coded";
  settings.own<CodedSettings>().scope = "layer";
  settings.own<CodedSettings>().form = form;
  settings.kept_ratio = 0.3;
  settings.window_tokens = 0;
  settings.context = 4096;
  resolve(settings);
  return settings;
}

// Windows, soft caps, experts, every kind of RoPE: whatever a family has must get through the gradient and
// the fit. Models with latent attention are refused; keys before RoPE work wherever keys after it do not.
TEST(CodedZoo, EveryFamilyConverts) {
  for (const std::string& name : testing::zoo_names()) {
    const testing::TemporaryDirectory directory;
    const std::filesystem::path model = testing::zoo_directory() / name;
    const Checkpoint checkpoint = Checkpoint::open(model);
    const ModelConfig config = read_model_config(checkpoint);
    if (config.mla) {
      EXPECT_THROW(make_plan(config, zoo_settings("full"), false), Error);
      continue;
    }
    TokenSet tokens;
    tokens.sequences = testing::random_ids(
        24, std::min<std::int64_t>(48, config.max_position_embeddings), config.vocab_size, 3);
    tokens.tokenizer_hash = std::string(64, 'a');
    write_token_set(directory / "tokens.h5", tokens);
    covariance(checkpoint, tokens, {{1, 4}, false}, directory / "covariance.h5", false);
    metric(checkpoint, tokens, {{1, 4}, 0}, directory / "metric.h5", false);
    for (const char* form : {"full", "rotated", "auto"}) {
      SCOPED_TRACE(name + " " + form);
      const ConvertSettings settings = zoo_settings(form);
      if (std::string(form) == "rotated" && config.depends_on_length(0)) {
        EXPECT_THROW(make_plan(config, settings, false), UsageError);
        continue;
      }
      convert({.checkpoint = model,
               .tokens = directory / "tokens.h5",
               .calibration = {},
               .fisher = {},
               .covariance = directory / "covariance.h5",
               .metric = directory / "metric.h5",
               .out = directory / form,
               .force = false},
              settings);
      const Conversion conversion = read_conversion(directory / form);
      EXPECT_LT(total_error(conversion, &CodedReport::predicted_error),
                0.5 * total_error(conversion, &CodedReport::energy));
    }
  }
}

}  // namespace
}  // namespace kvc
