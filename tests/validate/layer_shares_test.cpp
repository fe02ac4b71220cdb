#include "validate/layer_shares.h"

#include <gtest/gtest.h>

#include "core/kv_plan_bytes.h"

namespace kvc {
namespace {

TEST(LayerShares, PlainLayersKeepTheirDtype) {
  const KvPlan plan = plain_plan(3, 2, 64);
  for (const LayerShare& layer : layer_shares(plan, KvDtype::kBFloat16, KvDtype::kBFloat16)) {
    EXPECT_EQ(layer.kept_ratio, 1);
    EXPECT_EQ(layer.bits, 16);
  }
  // Codes of 8 bits; float16 scale and minimum per 32 tokens of a key's channel, and per 32 channels of a value.
  for (const LayerShare& layer : layer_shares(plan, KvDtype::kBFloat16, KvDtype::kInt8)) {
    EXPECT_DOUBLE_EQ(layer.bits, 9);
    EXPECT_DOUBLE_EQ(layer.kept_ratio, 9.0 / 16);
  }
}

TEST(LayerShares, CodedLayersHaveTheMeanOfTheirChannels) {
  KvPlan plan = plain_plan(3, 2, 64);  // 256 channels a layer
  plan.layers[0] = plan.layers[1] = KvSource::kCoded;
  CodedBlock together{.first_layer = 0, .num_layers = 2, .part = CodedParts::kKeys};
  together.coefficients[4] = 256;  // of 256 key channels
  plan.coded.push_back(together);
  for (const int layer : {0, 1}) {
    CodedBlock values{.first_layer = layer, .part = CodedParts::kValues, .gain = true};
    values.coefficients[2] = layer == 0 ? 128 : 64;
    plan.coded.push_back(values);
  }
  const auto layers = layer_shares(plan, KvDtype::kFloat16, KvDtype::kFloat16);
  EXPECT_DOUBLE_EQ(layers[0].bits, (4 * 128 + 2 * 128 + 8) / 256.0);
  EXPECT_DOUBLE_EQ(layers[1].bits, (4 * 128 + 2 * 64 + 8) / 256.0);
  EXPECT_DOUBLE_EQ(layers[1].kept_ratio, layers[1].bits / 16);
  EXPECT_EQ(layers[2].bits, 16);
  EXPECT_EQ(layers[2].source, KvSource::kPlain);
}

TEST(LayerShares, LayersOfAGroupShareItsLatent) {
  KvPlan plan = plain_plan(4, 2, 8);                   // 32 numbers a layer
  plan.compression.granularity = Granularity::kGroup;  // no positions beside latents
  plan.layers[1] = plan.layers[2] = KvSource::kLatent;
  plan.groups.push_back({.first_layer = 1,
                         .num_layers = 2,
                         .rank = 16,
                         .merge_weights = {},
                         .basis = LatentBasis::kCalibrated});
  const auto layers = layer_shares(plan, KvDtype::kFloat16, KvDtype::kFloat16);
  EXPECT_DOUBLE_EQ(layers[1].kept_ratio, 16.0 / 64);
  EXPECT_DOUBLE_EQ(layers[2].bits, 4);
  double kept = 0;
  for (const LayerShare& layer : layers) {
    kept += layer.kept_ratio / 4;
  }
  const auto bytes = static_cast<double>(plan_bytes(plan, 32, {{.merged = 32}}, KvDtype::kFloat16));
  EXPECT_DOUBLE_EQ(kept, bytes / static_cast<double>(original_bytes(plan, 32, KvDtype::kFloat16)));
}

TEST(LayerShares, FusedLayersKeepNothing) {
  KvPlan plan = plain_plan(2, 2, 8);
  plan.layers[1] = KvSource::kFused;
  plan.fused.push_back({.layer = 1, .key_sources = {0}, .value_sources = {0}});
  EXPECT_EQ(layer_shares(plan, KvDtype::kFloat16, KvDtype::kFloat16)[1].bits, 0);
}

}  // namespace
}  // namespace kvc
