#include "core/kv_sources.h"

#include "core/kv_plan_bytes.h"
#include "core/kv_plan_json.h"
#include "tests/core/core_fixture.h"

namespace kvc::kv_sources_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Six layers of 2 KV heads of 4 channels (kv_dim 8): 0 and 1 plain, 2 coded head by head, 3 and 4 coded
// together, 5 fused.
KvPlan mixed_plan() {
  KvPlan plan = plain_plan(6, 2, 4);
  plan.method = "coded";
  plan.layers = {KvSource::kPlain, KvSource::kPlain, KvSource::kCoded,
                 KvSource::kCoded, KvSource::kCoded, KvSource::kFused};
  const CodedBlock head{.first_layer = 2, .head = 0, .coefficients = {0, 1, 0, 0, 2, 0, 0, 0, 1}};
  CodedBlock other = head;
  other.head = 1;
  const CodedBlock pair{
      .first_layer = 3, .num_layers = 2, .coefficients = {0, 0, 0, 3}, .gain = true};
  plan.coded = {head, other, pair};
  plan.fused = {{.layer = 5, .key_sources = {0, 1}, .value_sources = {1}}};
  plan.compression.sink_tokens = 4;
  plan.compression.window_tokens = 28;
  return plan;
}

std::string check_error(const std::function<void(KvPlan&)>& change) {
  KvPlan plan = mixed_plan();
  change(plan);
  return error_of([&] { plan.check(); });
}

TEST(KvSources, NamesRoundTrip) {
  for (const char* name : {"plain", "latent", "coded", "fused"}) {
    EXPECT_EQ(to_string(parse_kv_source(name)), name);
  }
  for (const char* name : {"channel", "complex", "full"}) {
    EXPECT_EQ(to_string(parse_fusion_form(name)), name);
  }
}

TEST(KvSources, CountBitsOfACodedToken) {
  EXPECT_EQ(mixed_plan().coded[0].num_coefficients(), 4);
  EXPECT_EQ(mixed_plan().coded[0].bits(), 1 + 2 * 4 + 8);
  EXPECT_EQ(CodedBlock{}.bits(), 0);
}

// Layer 2 of mixed_plan with keys of each head in two bases, and values of all heads.
KvPlan plan_apart() {
  KvPlan plan = mixed_plan();
  CodedBlock keys = plan.coded[0];
  keys.part = CodedParts::kKeys;
  keys.coefficients = {0, 1, 0, 0, 2};
  keys.bases = 2;
  CodedBlock other = keys;
  other.head = 1;
  other.rotated = true;
  const CodedBlock values{
      .first_layer = 2, .part = CodedParts::kValues, .coefficients = {0, 0, 0, 5}};
  plan.coded = {keys, other, values, plan.coded[2]};
  return plan;
}

TEST(KvSources, KeysAndValuesMayBeApart) {
  const KvPlan plan = plan_apart();
  EXPECT_NO_THROW(plan.check());
  EXPECT_EQ(coded_channels(plan, plan.coded[0]), 4);
  EXPECT_EQ(coded_channels(plan, plan.coded[2]), 8);
  EXPECT_EQ(coded_block_bytes(plan, plan.coded[0], 100, KvDtype::kBFloat16),
            64 * 9 / 8 + 36 * 4 * 2);
  EXPECT_EQ(coded_block_bytes(plan, plan.coded[2], 100, KvDtype::kBFloat16),
            64 * 15 / 8 + 36 * 8 * 2);
  const KvPlan read = kv_plan_from_json(to_json(plan), "p");
  EXPECT_EQ(dump_json(to_json(read)), dump_json(to_json(plan)));
  EXPECT_EQ(read.coded[1].part, CodedParts::kKeys);
  EXPECT_EQ(read.coded[1].bases, 2);
  EXPECT_TRUE(read.coded[1].rotated);
  const auto refusal = [](const std::function<void(KvPlan&)>& change) {
    KvPlan changed = plan_apart();
    change(changed);
    return error_of([&] { changed.check(); });
  };
  EXPECT_THAT(refusal([](KvPlan& changed) { changed.coded.erase(changed.coded.begin() + 2); }),
              HasSubstr("expected 0, or -1 for all"));
  EXPECT_THAT(refusal([](KvPlan& changed) { changed.coded.erase(changed.coded.begin() + 1); }),
              HasSubstr("layer 2 is for KV head -1, expected 1"));
  EXPECT_THAT(
      refusal([](KvPlan& changed) { std::swap(changed.coded[1].part, changed.coded[2].part); }),
      HasSubstr("holds values, expected keys"));
  EXPECT_THAT(refusal([](KvPlan& changed) { changed.coded[0].bases = 3; }),
              HasSubstr("a divisor of its 2 rotary pairs"));
  EXPECT_THAT(refusal([](KvPlan& changed) { changed.coded[2].bases = 2; }),
              HasSubstr("2 bases in the coded block at layer 2"));
  EXPECT_THAT(refusal([](KvPlan& changed) { changed.coded[1].bases = 1; }),
              HasSubstr("is rotated, which requires"));
}

// 4 + 28 tokens stay exact, and what does not fill a block of 32.
TEST(KvSources, BytesAreThoseOfCodesAndOfExactTokens) {
  const KvPlan plan = mixed_plan();
  EXPECT_EQ(tokens_in_blocks(plan, 63), 0);
  EXPECT_EQ(tokens_in_blocks(plan, 64), 32);
  EXPECT_EQ(tokens_in_blocks(plan, 100), 64);
  EXPECT_EQ(coded_block_bytes(plan, plan.coded[0], 100, KvDtype::kBFloat16),
            64 * 17 / 8 + 36 * 2 * 4 * 2);
  EXPECT_EQ(coded_block_bytes(plan, plan.coded[2], 100, KvDtype::kFloat32),
            64 * 9 / 8 + 64 + 36 * 2 * 2 * 8 * 4);
  EXPECT_EQ(coded_block_bytes(plan, plan.coded[2], 100, KvDtype::kInt8, 64),
            64 * 9 / 8 + 64 + 64 * 2 * 2 * 8 * 2);
  EXPECT_EQ(plan_bytes(plan, 100, {}, KvDtype::kBFloat16),
            2 * 2 * 8 * 2 * 100 + 2 * (64 * 17 / 8 + 36 * 2 * 4 * 2) + 64 * 9 / 8 + 64 +
                36 * 2 * 2 * 8 * 2);
}

TEST(KvSources, PlanSurvivesJson) {
  KvPlan plan = mixed_plan();
  plan.fused[0].key_heads = {1, 0, 1, 1};
  const KvPlan read = kv_plan_from_json(to_json(plan), "p");
  EXPECT_EQ(read.fused[0].key_heads, plan.fused[0].key_heads);
  EXPECT_EQ(dump_json(to_json(read)), dump_json(to_json(plan)));
  EXPECT_EQ(read.num_layers_from(KvSource::kCoded), 3);
  EXPECT_EQ(read.coded[1].head, 1);
  EXPECT_EQ(read.fused[0].key_sources, (std::vector<int>{0, 1}));
}

TEST(KvSources, NameTheFirstInconsistency) {
  EXPECT_EQ(check_error([](KvPlan&) {}), "");
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.coded.pop_back(); }),
              HasSubstr("layer 3 is coded, but no coded block holds it"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.layers[3] = KvSource::kPlain; }),
              HasSubstr("layer 3 is plain, but a coded block holds it"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.coded.erase(plan.coded.begin() + 1); }),
              AllOf(HasSubstr("layer 3 is for KV head -1"), HasSubstr("expected 1")));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.coded.erase(plan.coded.begin()); }),
              HasSubstr("KV head 1, expected 0"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.coded[0].coefficients[3] = 9; }),
              HasSubstr("9 coefficients of one width"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.coded[0].coefficients[3] = 5; }),
              HasSubstr("9 coefficients of 8 channels"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.coded[0].coefficients[0] = 1; }),
              HasSubstr("5 coefficients of 8"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.coded[2].num_layers = 4; }),
              HasSubstr("expected 3 to 2"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.fused[0].value_sources = {2}; }),
              HasSubstr("fused layer 5 reads layer 2"));
  EXPECT_THAT(check_error([](KvPlan& plan) {
                plan.fused[0].key_sources = {1, 0};
              }),
              HasSubstr("reads layer 0"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.fused[0].key_sources.clear(); }),
              HasSubstr("no sources"));
  EXPECT_EQ(check_error([](KvPlan& plan) {
              plan.fused[0].key_heads = {1, 1, 0, 1};  // of two sources
              plan.fused[0].value_heads = {0, 0};
            }),
            "");
  EXPECT_THAT(check_error([](KvPlan& plan) {
                plan.fused[0].key_heads = {1, 1};
              }),
              HasSubstr("names 2 heads of 2 sources"));
  EXPECT_THAT(check_error([](KvPlan& plan) {
                plan.fused[0].value_heads = {0, 2};
              }),
              HasSubstr("reads KV head 2, expected 0 to 1"));
  EXPECT_THAT(check_error([](KvPlan& plan) {
                plan.fused[0].form = FusionForm::kFull;
                plan.fused[0].value_heads = {0, 1};
              }),
              HasSubstr("of form full"));
  EXPECT_THAT(check_error([](KvPlan& plan) { plan.fused.clear(); }),
              HasSubstr("layer 5 is fused, but no fused layer holds it"));
}

TEST(KvSources, RefuseJsonThatTheyDoNotUnderstand) {
  const auto error = [](const std::function<void(Json&)>& change) {
    Json json = to_json(mixed_plan());
    change(json);
    return error_of([&] { kv_plan_from_json(json, "x.json"); });
  };
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_THAT(error([](Json& json) { json["coded"][1]["coefficients"].erase(0); }),
              AllOf(HasSubstr("x.json: coded 1"), HasSubstr("8 counts")));
  EXPECT_THAT(error([](Json& json) { json["coded"][0].erase("head"); }),
              HasSubstr("\"head\" is missing"));
  EXPECT_THAT(error([](Json& json) { json["coded"][0]["head"] = -2; }), HasSubstr("whole number"));
  EXPECT_THAT(error([](Json& json) { json["fused"][0]["key_sources"] = {0.5}; }),
              HasSubstr("whole number"));
  EXPECT_THAT(error([](Json& json) { json["fused"][0]["form"] = "linear"; }),
              HasSubstr("known: channel, complex, full"));
  EXPECT_THAT(error([](Json& json) { json["coded"] = 1; }), HasSubstr("must be a list"));
}

}  // namespace
}  // namespace kvc::kv_sources_test
