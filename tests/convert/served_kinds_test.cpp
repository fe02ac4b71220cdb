// Which conversions vLLM runs, as model cards say it; what --for makes of options is tested in tests/cli/engines_test.py.
#include "convert/served_kinds.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

KvPlan plan_of(const char* method) {
  KvPlan plan;
  plan.method = method;
  plan.num_kv_heads = 2;
  plan.head_dim = 8;
  plan.compression.sink_tokens = plan.compression.window_tokens = 0;
  plan.compression.block_tokens = 1;
  plan.compression.rule = MergeRule::kNone;
  return plan;
}

KvPlan latents_of(const char* method, LatentBasis basis) {
  KvPlan plan = plan_of(method);
  LatentGroup group;
  group.num_layers = 2;
  group.rank = 4;
  group.basis = basis;
  plan.groups = {group};
  return plan;
}

bool served(const KvPlan& plan, const char* model_type = "llama", const char* kv_dtype = "") {
  ConvertSettings settings;
  settings.method = plan.method;
  settings.kv_dtype = kv_dtype;
  return vllm_serves(settings, plan, model_type);
}

TEST(ServedKinds, CodesOfEveryTokenOrBesideWholeTiles) {
  KvPlan plan = plan_of("coded");
  plan.layers = {KvSource::kCoded};
  EXPECT_FALSE(served(plan)) << "prompts are read exactly";
  plan.compression.prefill = PrefillMode::kCoded;
  EXPECT_TRUE(served(plan));
  EXPECT_TRUE(served(plan, "phi3"));
  EXPECT_FALSE(served(plan, "olmo2"));
  plan.compression.window_tokens = 64;
  EXPECT_TRUE(served(plan));
  plan.compression.window_tokens = 40;
  EXPECT_FALSE(served(plan));
  plan.compression.window_tokens = 0;
  plan.compression.sink_tokens = 4;
  EXPECT_FALSE(served(plan));
}

TEST(ServedKinds, LatentsWithoutExactTokens) {
  const KvPlan calibrated = latents_of("pca", LatentBasis::kCalibrated);
  EXPECT_TRUE(served(calibrated));
  EXPECT_TRUE(served(calibrated, "phi3"));
  EXPECT_FALSE(served(calibrated, "llama", "int8"));
  const KvPlan factors = latents_of("palu", LatentBasis::kWeights);
  EXPECT_TRUE(served(factors));
  EXPECT_FALSE(served(factors, "phi3")) << "one matrix for queries, keys and values";
  KvPlan merged = latents_of("commonkv", LatentBasis::kWeights);
  EXPECT_TRUE(served(merged));
  merged.compression.rule = MergeRule::kLs;
  EXPECT_FALSE(served(merged));
  KvPlan blocks = calibrated;
  blocks.compression.block_tokens = 8;
  EXPECT_FALSE(served(blocks));
  KvPlan window = calibrated;
  window.compression.window_tokens = 32;
  EXPECT_FALSE(served(window));
  KvPlan of_latents = latents_of("xkv-static", LatentBasis::kCalibrated);
  EXPECT_TRUE(served(of_latents));
  of_latents.own_widths = KvWidths{8, 4};
  EXPECT_FALSE(served(of_latents));
}

TEST(ServedKinds, FusedLayersWithoutMatrices) {
  KvPlan plan = plan_of("fusedkv");
  plan.fused.emplace_back();
  EXPECT_TRUE(served(plan));
  EXPECT_FALSE(served(plan, "phi3"));
  plan.fused.front().form = FusionForm::kFull;
  EXPECT_FALSE(served(plan));
}

TEST(ServedKinds, NoOtherMethod) {
  for (const char* method : {"minicache", "xkv"}) {
    EXPECT_FALSE(served(plan_of(method))) << method;
  }
}

}  // namespace
}  // namespace kvc
