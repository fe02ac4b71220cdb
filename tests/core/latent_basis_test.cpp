// Plans whose latents are coefficients of principal directions.
#include "core/kv_plan_bytes.h"
#include "core/kv_plan_json.h"
#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

// Three layers of 2 KV heads of 4 channels (kv_dim 8), two of them with 3 key and 5 value directions.
KvPlan principal_plan(LatentBasis basis) {
  KvPlan plan = plain_plan(3, 2, 4);
  plan.method = "xkv";
  plan.layers = {KvSource::kPlain, KvSource::kLatent, KvSource::kLatent};
  plan.groups = {{.first_layer = 1,
                  .num_layers = 2,
                  .split_kv = true,
                  .rank = 8,
                  .key_rank = 3,
                  .value_rank = 5,
                  .merge_weights = {},
                  .basis = basis}};
  plan.compression.granularity = Granularity::kGroup;
  if (basis == LatentBasis::kRequest) {
    plan.request = RequestSettings{.later = LaterTokens::kNewSegment, .compress_generated = true};
  }
  return plan;
}

std::string check_error(LatentBasis basis, const std::function<void(KvPlan&)>& change) {
  KvPlan plan = principal_plan(basis);
  change(plan);
  return error_of([&] { plan.check(); });
}

TEST(LatentBasis, NamesRoundTrip) {
  for (const char* name : {"weights", "calibrated", "request"}) {
    EXPECT_EQ(to_string(parse_latent_basis(name)), name);
  }
  for (const char* name : {"exact", "project", "new-segment"}) {
    EXPECT_EQ(to_string(parse_later_tokens(name)), name);
  }
  for (const char* name : {"eigh", "subspace"}) {
    EXPECT_EQ(to_string(parse_basis_solver(name)), name);
  }
}

TEST(LatentBasis, PlansRoundTrip) {
  for (const LatentBasis basis : {LatentBasis::kCalibrated, LatentBasis::kRequest}) {
    const Json json = to_json(principal_plan(basis));
    EXPECT_EQ(to_json(kv_plan_from_json(json, "test")), json);
  }
}

// 10 latents of 8 numbers, and 4 exact tokens of 2 layers; bases of 2 * 8 * (3 + 5) numbers.
TEST(LatentBasis, BytesAreThoseOfLatentsExactTokensAndBases) {
  const GroupTokens tokens{.merged = 10, .pending = 4, .bases = 2};
  const KvPlan plan = principal_plan(LatentBasis::kRequest);
  EXPECT_EQ(group_bytes(plan, 0, tokens, KvDtype::kBFloat16),
            (10 * 8 + 4 * 2 * 2 * 8 + 2 * 2 * 8 * 8) * 2);
  EXPECT_EQ(group_bytes(plan, 0, tokens, KvDtype::kFloat32, 16),
            (16 * 8 + 16 * 2 * 2 * 8 + 2 * 2 * 16 * 8) * 4);
  KvPlan joint = plan;
  joint.groups[0].split_kv = false;
  joint.groups[0].key_rank = joint.groups[0].value_rank = 0;
  EXPECT_EQ(group_bytes(joint, 0, {.bases = 1}, KvDtype::kBFloat16), 2 * 8 * 2 * 8 * 2);
}

// A token saves 2 * 2 * 8 - 8 = 24 numbers, a basis takes 128.
TEST(LatentBasis, PaysFromTheBreakEvenOn) {
  const KvPlan plan = principal_plan(LatentBasis::kRequest);
  EXPECT_EQ(break_even_tokens(plan, KvDtype::kBFloat16), 6);
  KvPlan full = plan;
  full.groups[0].key_rank = full.groups[0].value_rank = 16;
  full.groups[0].rank = 32;
  EXPECT_GT(break_even_tokens(full, KvDtype::kBFloat16), std::int64_t{1} << 60);
}

TEST(LatentBasis, NamesTheFirstInconsistency) {
  for (const LatentBasis basis : {LatentBasis::kCalibrated, LatentBasis::kRequest}) {
    EXPECT_EQ(check_error(basis, [](KvPlan&) {}), "");
    EXPECT_THAT(check_error(basis, [](KvPlan& plan) { plan.compression.rule = MergeRule::kNone; }),
                HasSubstr("principal directions encode every token"));
    EXPECT_THAT(check_error(basis, [](KvPlan& plan) { plan.groups[0].key_rank = 17; }),
                HasSubstr("key or value rank 17"));
  }
  EXPECT_THAT(check_error(LatentBasis::kRequest, [](KvPlan& plan) { plan.request.reset(); }),
              HasSubstr("\"request\""));
  EXPECT_THAT(
      check_error(LatentBasis::kCalibrated, [](KvPlan& plan) { plan.request = RequestSettings{}; }),
      HasSubstr("\"request\""));
  EXPECT_THAT(check_error(LatentBasis::kRequest,
                          [](KvPlan& plan) { plan.request->later = LaterTokens::kExact; }),
              HasSubstr("stay exact"));
  EXPECT_THAT(check_error(LatentBasis::kRequest,
                          [](KvPlan& plan) {
                            plan.layers[0] = KvSource::kLatent;
                            plan.groups.insert(plan.groups.begin(),
                                               {.num_layers = 1, .rank = 4, .merge_weights = {}});
                          }),
              HasSubstr("expected one kind"));
}

}  // namespace
}  // namespace kvc
