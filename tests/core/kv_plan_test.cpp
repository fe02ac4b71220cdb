#include "core/kv_plan_bytes.h"

#include "core/kv_plan_json.h"
#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Five layers of 2 KV heads of 4 channels (kv_dim 8): layers 1-3 share a latent of 10, the others
// are plain.
KvPlan grouped_plan(MergeRule rule) {
  KvPlan plan = plain_plan(5, 2, 4);
  plan.method = "commonkv";
  for (std::size_t layer : {1, 2, 3}) {
    plan.layers[layer] = KvSource::kLatent;
  }
  LatentGroup group{.first_layer = 1, .num_layers = 3, .rank = 10, .merge_weights = {}};
  if (rule == MergeRule::kMean || rule == MergeRule::kFisher || rule == MergeRule::kSensitivity) {
    group.merge_weights = {0.5, 0.25, 0.25};
  }
  plan.groups = {group};
  plan.compression.rule = rule;
  if (rule == MergeRule::kNone) {
    plan.compression.unmerged = UnmergedForm::kLatent;
  }
  return plan;
}

std::string check_error(const std::function<void(KvPlan&)>& change,
                        MergeRule rule = MergeRule::kLs) {
  KvPlan plan = grouped_plan(rule);
  change(plan);
  return error_of([&] { plan.check(); });
}

TEST(KvPlan, NamesRoundTrip) {
  for (const char* name : {"none", "mean", "fisher", "sensitivity", "ls"}) {
    EXPECT_EQ(to_string(parse_merge_rule(name)), name);
  }
  for (const char* name : {"token", "group"}) {
    EXPECT_EQ(to_string(parse_granularity(name)), name);
  }
  for (const char* name : {"exact", "truncated"}) {
    EXPECT_EQ(to_string(parse_prefill_mode(name)), name);
  }
  for (const char* name : {"plain", "latent"}) {
    EXPECT_EQ(to_string(parse_unmerged_form(name)), name);
  }
  for (const char* name : {"float32", "bfloat16", "float16", "int8", "int4", "int2"}) {
    EXPECT_EQ(to_string(parse_kv_dtype(name)), name);
  }
  EXPECT_EQ(error_of([] { parse_merge_rule("median"); }),
            "unknown merge rule 'median'; known: none, mean, fisher, sensitivity, ls");
  EXPECT_EQ(bytes_per_element(KvDtype::kFloat32), 4);
  EXPECT_EQ(bytes_per_element(KvDtype::kBFloat16), 2);
  EXPECT_EQ(bytes_per_element(KvDtype::kFloat16), 2);
  EXPECT_EQ(bytes_per_element(KvDtype::kInt8), 2);  // of exact tokens
  EXPECT_EQ(bits_per_element(KvDtype::kInt8), 8);
  EXPECT_EQ(bits_per_element(KvDtype::kInt4), 4);
  EXPECT_EQ(bits_per_element(KvDtype::kInt2), 2);
  EXPECT_EQ(bits_per_element(KvDtype::kFloat32), 32);
}

TEST(KvPlan, FindsTheGroupOfALayer) {
  const KvPlan plan = grouped_plan(MergeRule::kLs);
  EXPECT_EQ(plan.group_of(0), -1);
  EXPECT_EQ(plan.group_of(1), 0);
  EXPECT_EQ(plan.group_of(3), 0);
  EXPECT_EQ(plan.group_of(4), -1);
}

TEST(KvPlan, AcceptsConsistentPlans) {
  for (MergeRule rule : {MergeRule::kNone, MergeRule::kMean, MergeRule::kFisher,
                         MergeRule::kSensitivity, MergeRule::kLs}) {
    EXPECT_EQ(check_error([](KvPlan&) {}, rule), "");
  }
}

TEST(KvPlan, NamesTheFirstInconsistency) {
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.layers[2] = KvSource::kPlain; }),
              HasSubstr("layer 2 is plain, but a group holds it"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.layers[4] = KvSource::kLatent; }),
              HasSubstr("layer 4 is latent, but no group holds it"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.groups.push_back(plan.groups[0]); }),
              AllOf(HasSubstr("begins at layer 1"), HasSubstr("ascending, no overlap")));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.groups[0].num_layers = 5; }),
              HasSubstr("begins at layer 1, expected 0 to 0"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.groups[0].num_layers = 0; }),
              HasSubstr("has 0 layers"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.groups[0].rank = 0; }),
              HasSubstr("layers 1-3: rank 0, expected 1 to 48"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.groups[0].rank = 49; }), HasSubstr("rank 49"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.groups[0].key_rank = 4; }), HasSubstr("joint"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.groups[0].split_kv = true; }),
              HasSubstr("group of one layer"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.head_dim = 0; }), HasSubstr("0 channels"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.layers.clear(); }), HasSubstr("0 layers"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.compression.block_tokens = 0; }),
              HasSubstr("blocks of 0"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.compression.sink_tokens = -1; }),
              HasSubstr("-1 sink"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.compression.target_kept_ratio = 0; }),
              HasSubstr("target_kept_ratio 0"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.compression.unmerged = UnmergedForm::kPlain; },
                          MergeRule::kNone),
              HasSubstr("unmerged must be latent"));
}

TEST(KvPlan, ChecksMergeWeights) {
  const auto with = [](std::vector<double> weights) {
    return [weights](KvPlan& plan) { plan.groups[0].merge_weights = weights; };
  };
  EXPECT_THAT(check_error(with({0.5, 0.5, 0}), MergeRule::kLs),
              HasSubstr("3 merge weights, expected 0"));
  EXPECT_THAT(check_error(with({0.5, 0.5}), MergeRule::kFisher),
              HasSubstr("2 merge weights, expected 3"));
  EXPECT_THAT(check_error(with({0.5, 0.5, 0.5}), MergeRule::kMean), HasSubstr("sum to 1.5"));
  EXPECT_THAT(check_error(with({-1, 1, 1}), MergeRule::kMean), HasSubstr("merge weight -1"));
  EXPECT_EQ(check_error(with({0, 0, 1}), MergeRule::kSensitivity), "");
}

TEST(KvPlan, ChecksSplitRanks) {
  const auto split = [](std::int64_t key_rank, std::int64_t value_rank, std::int64_t rank) {
    return check_error([=](KvPlan& plan) {
      plan.layers = {KvSource::kLatent};
      plan.groups = {{.num_layers = 1,
                      .split_kv = true,
                      .rank = rank,
                      .key_rank = key_rank,
                      .value_rank = value_rank,
                      .merge_weights = {}}};
    });
  };
  EXPECT_EQ(split(3, 8, 11), "");
  EXPECT_THAT(split(3, 9, 12), HasSubstr("9, expected 1 to kv_dim 8"));
  EXPECT_THAT(split(0, 8, 8), HasSubstr("key or value rank 0"));
  EXPECT_THAT(split(3, 8, 12), HasSubstr("rank 12 is not key rank 3 + value rank 8"));
}

TEST(KvPlan, RoundTripsThroughJson) {
  KvPlan plan = grouped_plan(MergeRule::kFisher);
  plan.key_norm = true;
  plan.compression = {.rule = MergeRule::kFisher,
                      .granularity = Granularity::kGroup,
                      .prefill = PrefillMode::kTruncated,
                      .unmerged = UnmergedForm::kLatent,
                      .target_kept_ratio = 0.3,
                      .sink_tokens = 1,
                      .window_tokens = 2,
                      .block_tokens = 3};
  const std::string text = dump_json(to_json(plan));
  EXPECT_THAT(text, AllOf(HasSubstr("\"num_kv_heads\": 2"), HasSubstr("\"rule\": \"fisher\""),
                          HasSubstr("\"target_kept_ratio\": 0.3")));
  const KvPlan read = kv_plan_from_json(parse_json(text, "p"), "p");
  EXPECT_EQ(dump_json(to_json(read)), text);
  EXPECT_EQ(read.groups[0].merge_weights, plan.groups[0].merge_weights);
  EXPECT_TRUE(read.key_norm);
  EXPECT_EQ(read.compression.block_tokens, 3);
  EXPECT_EQ(dump_json(to_json(kv_plan_from_json(to_json(plain_plan(2, 1, 2)), "p"))),
            dump_json(to_json(plain_plan(2, 1, 2))));
}

TEST(KvPlan, RefusesJsonThatItDoesNotUnderstand) {
  const auto error = [](const std::function<void(Json&)>& change) {
    Json json = to_json(grouped_plan(MergeRule::kMean));
    change(json);
    return error_of([&] { kv_plan_from_json(json, "x.json"); });
  };
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_THAT(error([](Json& json) { json.erase("head_dim"); }),
              HasSubstr("x.json: \"head_dim\" is missing"));
  EXPECT_THAT(error([](Json& json) { json["merged"] = 1; }), HasSubstr("8 fields, 7 are known"));
  EXPECT_THAT(error([](Json& json) { json["head_dim"] = 4.0; }), HasSubstr("whole number"));
  EXPECT_THAT(error([](Json& json) { json["head_dim"] = -4; }), HasSubstr("whole number"));
  EXPECT_THAT(error([](Json& json) { json["key_norm"] = 1; }), HasSubstr("true or false"));
  EXPECT_THAT(error([](Json& json) { json["layers"][0] = "shared"; }),
              HasSubstr("known: plain, latent, coded, fused"));
  EXPECT_THAT(error([](Json& json) { json["layers"] = 3; }), HasSubstr("must be a list"));
  EXPECT_THAT(error([](Json& json) { json["groups"][0]["first_layer"] = 1ull << 40; }),
              AllOf(HasSubstr("group 0"), HasSubstr("2147483647")));
  EXPECT_THAT(error([](Json& json) { json["groups"][0]["rank"] = ~0ull; }),
              HasSubstr("whole number"));
  EXPECT_THAT(error([](Json& json) { json["groups"][0]["merge_weights"][0] = "a"; }),
              HasSubstr("no number"));
  EXPECT_THAT(error([](Json& json) { json["policy"]["rule"] = "x"; }),
              AllOf(HasSubstr("x.json: policy"), HasSubstr("unknown merge rule 'x'")));
  EXPECT_THAT(error([](Json& json) { json["groups"][0]["rank"] = 49; }),
              HasSubstr("x.json: KV plan"));
  EXPECT_THAT(error([](Json& json) { json = Json::array(); }), HasSubstr("expected an object"));
}

// One float32 token: latent 10*4 = 40; plain form 2*3*8*4 = 192; latent form 3*40 = 120;
// position 4.
TEST(KvBytes, OfAGroupFollowTheFormula) {
  const auto bytes = [](const KvPlan& plan, GroupTokens tokens) {
    return group_bytes(plan, 0, tokens, KvDtype::kFloat32);
  };
  const GroupTokens merged{.merged = 1}, unmerged{.unmerged = 1}, pending{.pending = 1};
  KvPlan ls = grouped_plan(MergeRule::kLs);
  EXPECT_EQ(bytes(ls, merged), 44);
  EXPECT_EQ(bytes(ls, unmerged), 196);
  EXPECT_EQ(bytes(ls, pending), 192);
  EXPECT_EQ(bytes(ls, {7, 5, 3}), 7 * 44 + 5 * 196 + 3 * 192);
  ls.key_norm = true;
  EXPECT_EQ(bytes(ls, pending), 192 + 3 * 2 * 4);
  ls.compression.unmerged = UnmergedForm::kLatent;
  EXPECT_EQ(bytes(ls, merged), 44);
  EXPECT_EQ(bytes(ls, unmerged), 124);
  EXPECT_EQ(bytes(ls, pending), 192 + 120);
  ls.compression.granularity = Granularity::kGroup;
  EXPECT_EQ(bytes(ls, merged), 40);
  EXPECT_EQ(bytes(ls, unmerged), 120);

  for (MergeRule rule : {MergeRule::kMean, MergeRule::kFisher, MergeRule::kSensitivity}) {
    EXPECT_EQ(bytes(grouped_plan(rule), pending), 192 + 40 + 4) << to_string(rule);
    EXPECT_EQ(bytes(grouped_plan(rule), merged), 44) << to_string(rule);
  }
  const KvPlan none = grouped_plan(MergeRule::kNone);
  EXPECT_EQ(bytes(none, unmerged), 120);
  EXPECT_EQ(bytes(none, pending), 192 + 120);
}

TEST(KvBytes, UseTheElementWidthForElementsOnly) {
  const KvPlan plan = grouped_plan(MergeRule::kFisher);
  EXPECT_EQ(group_bytes(plan, 0, {1, 0, 0}, KvDtype::kBFloat16), 20 + 4);
  EXPECT_EQ(group_bytes(plan, 0, {0, 1, 0}, KvDtype::kFloat16), 96 + 4);
  EXPECT_EQ(group_bytes(plan, 0, {0, 0, 1}, KvDtype::kFloat16), 96 + 20 + 4);
}

TEST(KvBytes, RoundEverySegmentUpToPages) {
  const KvPlan plan = grouped_plan(MergeRule::kLs);
  EXPECT_EQ(group_bytes(plan, 0, {1, 16, 17}, KvDtype::kFloat32, 16),
            16 * 44 + 16 * 196 + 32 * 192);
  EXPECT_EQ(group_bytes(plan, 0, {0, 0, 0}, KvDtype::kFloat32, 16), 0);
  EXPECT_EQ(plain_layer_bytes(plan, 17, KvDtype::kBFloat16, 16), 2 * 8 * 2 * 32);
}

TEST(KvBytes, OfAPlanAddUp) {
  const KvPlan plan = grouped_plan(MergeRule::kLs);
  EXPECT_EQ(plain_layer_bytes(plan, 3, KvDtype::kFloat32), 3 * 64);
  EXPECT_EQ(original_bytes(plan, 3, KvDtype::kFloat32), 5 * 3 * 64);
  EXPECT_EQ(plan_bytes(plan, 3, {{1, 1, 1}}, KvDtype::kFloat32), 2 * 192 + 44 + 196 + 192);
  EXPECT_EQ(plan_bytes(plain_plan(5, 2, 4), 3, {}, KvDtype::kFloat32),
            original_bytes(plan, 3, KvDtype::kFloat32));
  EXPECT_THAT(error_of([&] { plan_bytes(plan, 3, {}, KvDtype::kFloat32); }), HasSubstr("0 groups"));
  EXPECT_THAT(error_of([&] { original_bytes(plan, std::int64_t{1} << 60, KvDtype::kFloat32); }),
              HasSubstr("64 bits"));
}

// 8 heads of 128 channels: of 462 tokens 4 sinks and a window of 128 are exact, and of the 330 between them
// the last, incomplete block of 10.
TEST(KvBytes, OfIntegersCountScalesAndExactTokens) {
  const KvPlan plan = plain_plan(1, 8, 128);
  EXPECT_EQ(quantised_tokens(plan, 462, KvDtype::kInt8), 320);
  EXPECT_EQ(quantised_tokens(plan, 462, KvDtype::kFloat16), 0);
  EXPECT_EQ(quantised_tokens(plan, 163, KvDtype::kInt8), 0);
  EXPECT_EQ(quantised_tokens(plan, 164, KvDtype::kInt8), 32);
  const std::int64_t exact = 142 * 2 * 1024 * 2;
  const std::int64_t scales = 320 / 32 * 1024 * 4 + 320 * 1024 / 32 * 4;
  EXPECT_EQ(plain_layer_bytes(plan, 462, KvDtype::kInt8), exact + 2 * 320 * 1024 + scales);
  EXPECT_EQ(plain_layer_bytes(plan, 462, KvDtype::kInt4), exact + 320 * 1024 + scales);
  EXPECT_EQ(plain_layer_bytes(plan, 462, KvDtype::kInt2), exact + 320 * 1024 / 2 + scales);
  EXPECT_EQ(plain_layer_bytes(plan, 462, KvDtype::kInt4, 32),
            (exact / 142 * 160) + 320 * 1024 + scales);
  EXPECT_EQ(original_bytes(plan, 462, KvDtype::kInt4),
            original_bytes(plan, 462, KvDtype::kFloat16));
  EXPECT_THAT(error_of([&] { plain_layer_bytes(plan, 462, KvDtype::kInt8, 48); }),
              HasSubstr("multiple of 32"));
}

// Rank 10: two channels share a scale, so its latents stay 16-bit; rank 16 takes 16 + 4 bytes.
TEST(KvBytes, OfIntegersInAGroupFollowTheFormula) {
  KvPlan plan = grouped_plan(MergeRule::kLs);
  EXPECT_EQ(group_bytes(plan, 0, {.merged = 3}, KvDtype::kInt8), 3 * (20 + 4));
  plan.groups[0].rank = 16;
  EXPECT_EQ(group_bytes(plan, 0, {.merged = 3}, KvDtype::kInt8), 3 * (20 + 4));
  EXPECT_EQ(group_bytes(plan, 0, {.merged = 3}, KvDtype::kInt4), 3 * (12 + 4));
  EXPECT_EQ(group_bytes(plan, 0, {.merged = 3}, KvDtype::kInt2), 3 * (8 + 4));
  EXPECT_EQ(group_bytes(plan, 0, {.pending = 5}, KvDtype::kInt8), 5 * 96);
  // 33 unmerged tokens of 3 layers: a block of 32 as 8-bit codes and one token as 2 * 8 numbers of 16 bits.
  const std::int64_t block = 2 * 32 * 8 + 8 * 4 + 32 * 2 * 4;
  EXPECT_EQ(group_bytes(plan, 0, {.unmerged = 33}, KvDtype::kInt8), 3 * (block + 32) + 33 * 4);
  plan.compression.unmerged = UnmergedForm::kLatent;
  EXPECT_EQ(group_bytes(plan, 0, {.unmerged = 33}, KvDtype::kInt8), 33 * (3 * 20 + 4));
}

// DeepSeek-V2-Lite: 27 layers that store a latent of 512 and a rotary key of 64.
KvPlan latent_attention_plan() {
  KvPlan plan = plain_plan(27, 16, 192);
  plan.own_widths = KvWidths{512, 64};
  return plan;
}

TEST(KvBytes, OfAModelWithItsOwnLatentsAreThoseOfItsLatents) {
  const KvPlan plan = latent_attention_plan();
  EXPECT_EQ(plain_layer_bytes(plan, 17, KvDtype::kBFloat16, 16), 32 * 576 * 2);
  EXPECT_EQ(original_bytes(plan, 3, KvDtype::kFloat32), 27 * 3 * 576 * 4);
  EXPECT_EQ(plan_bytes(plan, 3, {}, KvDtype::kFloat32), original_bytes(plan, 3, KvDtype::kFloat32));
  // The latents of 64 of 200 tokens as codes; rotary keys stay exact.
  EXPECT_EQ(plain_layer_bytes(plan, 200, KvDtype::kInt8),
            64 * (512 + 64) + 136 * 512 * 2 + 200 * 64 * 2);
}

TEST(KvPlan, KeepsTheWidthsOfAModelWithItsOwnLatents) {
  const KvPlan plan = latent_attention_plan();
  const KvPlan read = kv_plan_from_json(to_json(plan), "p");
  ASSERT_TRUE(read.own_widths.has_value());
  EXPECT_EQ(read.own_widths->key, 512);
  EXPECT_EQ(read.own_widths->value, 64);
  EXPECT_FALSE(kv_plan_from_json(to_json(plain_plan(2, 1, 2)), "p").own_widths.has_value());
  Json json = to_json(plan);
  json["own_widths"]["value"] = 0;
  EXPECT_THAT(error_of([&] { kv_plan_from_json(json, "p"); }), HasSubstr("0 values per token"));
  json["own_widths"].erase("value");
  EXPECT_THAT(error_of([&] { kv_plan_from_json(json, "p"); }), HasSubstr("\"value\" is missing"));
}

TEST(KvPlan, RefusesGroupsOfLayersWithTheirOwnLatents) {
  KvPlan plan = grouped_plan(MergeRule::kLs);
  plan.own_widths = KvWidths{8, 4};
  EXPECT_THAT(error_of([&] { plan.check(); }), HasSubstr("latents of the model's own"));
}

// DeepSeek-V2-Lite in groups of four layers: 384 numbers for their latents, 64 of each rotary key.
TEST(KvBytes, OfGroupsOfOwnLatentsCountRotaryKeysAndBases) {
  KvPlan plan = latent_attention_plan();
  plan.compression.granularity = Granularity::kGroup;
  plan.request = RequestSettings{};
  std::fill_n(plan.layers.begin(), 4, KvSource::kLatent);
  plan.groups = {
      {.num_layers = 4, .rank = 384, .merge_weights = {}, .basis = LatentBasis::kRequest}};
  plan.check();
  EXPECT_EQ(group_bytes(plan, 0, {.merged = 10, .pending = 3, .bases = 1}, KvDtype::kBFloat16),
            (10 * (384 + 4 * 64) + 3 * 4 * (512 + 64) + 4 * 512 * 384) * 2);
  EXPECT_EQ(group_bytes(plan, 0, {.merged = 10, .pending = 3}, KvDtype::kBFloat16, 16),
            (16 * (384 + 4 * 64) + 16 * 4 * (512 + 64)) * 2);
  // A token saves 4 * 512 - 384 numbers, a basis takes 4 * 512 * 384.
  EXPECT_EQ(break_even_tokens(plan, KvDtype::kBFloat16), 4 * 512 * 384 / (4 * 512 - 384) + 1);
  plan.groups[0].rank = 4 * 512 + 1;
  EXPECT_THAT(error_of([&] { plan.check(); }), HasSubstr("expected 1 to 2048 (its latents)"));
  plan.groups[0] = {.num_layers = 4,
                    .split_kv = true,
                    .rank = 2,
                    .key_rank = 1,
                    .value_rank = 1,
                    .merge_weights = {},
                    .basis = LatentBasis::kRequest};
  EXPECT_THAT(error_of([&] { plan.check(); }), HasSubstr("joint principal directions alone"));
}

}  // namespace
}  // namespace kvc
