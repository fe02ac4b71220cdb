// Plans whose layers share directions in pairs.
#include "core/kv_plan_bytes.h"
#include "core/kv_plan_json.h"
#include "tests/core/core_fixture.h"

namespace kvc::paired_layers_test {
namespace {

using ::testing::HasSubstr;

// Five layers of 2 KV heads of 4 channels (kv_dim 8), the upper four in two pairs.
KvPlan paired_plan() {
  KvPlan plan = plain_plan(5, 2, 4);
  plan.method = "minicache";
  std::fill(plan.layers.begin() + 1, plan.layers.end(), KvSource::kPaired);
  plan.paired = PairedLayers{.first_layers = {1, 3}};
  return plan;
}

std::string check_error(const std::function<void(KvPlan&)>& change) {
  KvPlan plan = paired_plan();
  change(plan);
  return error_of([&] { plan.check(); });
}

TEST(PairedLayers, PlansRoundTrip) {
  KvPlan plan = paired_plan();
  plan.paired->retains_similar = true;
  const Json json = to_json(plan);
  EXPECT_EQ(to_json(kv_plan_from_json(json, "test")), json);
  EXPECT_EQ(json.at("layers").at(1), "paired");
  EXPECT_FALSE(to_json(plain_plan(2, 2, 4)).contains("paired"));
}

TEST(PairedLayers, MustCoverTheirLayers) {
  EXPECT_EQ(check_error([](KvPlan&) {}), "");
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.paired->first_layers = {1}; }),
              HasSubstr("layer 3 is paired, but no pair"));
  EXPECT_THAT(check_error([](KvPlan& plan) {
                plan.paired->first_layers = {1, 2};
              }),
              HasSubstr("a pair begins at layer 2, expected 3"));
  EXPECT_THAT(check_error([](KvPlan& plan) {
                plan.paired->first_layers = {1, 4};
              }),
              HasSubstr("a pair begins at layer 4"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.paired.reset(); }), HasSubstr("no pair"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.paired->retained = 1.5; }),
              HasSubstr("expected 0 to 1"));
}

// 2 bytes a number; a merged token: 2 directions of 8 and 2 * 2 norms each; retained ones 2 * 8 and a position.
TEST(PairedLayers, BytesAreThoseOfDirectionsNormsRetainedAndExactTokens) {
  const KvPlan plan = paired_plan();
  const PairTokens tokens{.merged = 10, .retained_keys = 1, .retained_values = 3, .exact = 2};
  const std::int64_t pair = 10 * 2 * (8 + 4) * 2 + (1 + 3) * (2 * 8 * 2 + 4) + 2 * 4 * 8 * 2;
  EXPECT_EQ(pair_bytes(plan, tokens, KvDtype::kFloat16), pair);
  EXPECT_EQ(pair_bytes(plan, tokens, KvDtype::kInt8), pair);
  EXPECT_EQ(pair_bytes(plan, tokens, KvDtype::kFloat16, 4),
            12 * 2 * (8 + 4) * 2 + (4 + 4) * (2 * 8 * 2 + 4) + 4 * 4 * 8 * 2);
  EXPECT_EQ(plan_bytes(plan, 12, {}, KvDtype::kFloat16, 1, {tokens, tokens}),
            2 * pair + 12 * 2 * 8 * 2);
  EXPECT_THAT(error_of([&] { plan_bytes(plan, 12, {}, KvDtype::kFloat16); }),
              HasSubstr("token counts of 0 pairs"));
}

TEST(PairedLayers, MostRetainedAreRoundedUp) {
  PairedLayers paired{.first_layers = {0}, .retained = 0.05};
  EXPECT_EQ(paired.most_retained(100), 5);
  EXPECT_EQ(paired.most_retained(101), 6);
  EXPECT_EQ(paired.most_retained(0), 0);
}

}  // namespace
}  // namespace kvc::paired_layers_test
