// Long texts behind a prompt (Engine::extend_text, Engine::continues_as_prompts, Engine::rewind).
#include <gtest/gtest.h>

#include "model/cache_plan.h"
#include "model/config.h"
#include "tests/runtime/coded_forms.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::continued_texts_test {
namespace {

using testing::cache_of;
using testing::coded_plan;
using testing::CodedPlanOptions;
using testing::CodedScope;
using testing::fused_upper_plan;
using testing::grouped_plan;
using testing::kRounding;
using testing::mean_error;
using testing::part;
using testing::principal_plan;
using testing::Row;
using testing::small_policy;
using testing::split_plan;
using testing::SyntheticCheckpoint;
using testing::under;

constexpr std::size_t kPrompt = 41;
const SyntheticCheckpoint kModel{.model_type = "llama"};

Row text_ids() { return testing::random_ids(1, 180, kModel.vocab_size, 5).front(); }

KvPlan plain() { return plain_plan(kModel.num_layers, kModel.num_kv_heads, kModel.head_dim); }

KvPlan latents(MergeRule rule) { return grouped_plan(kModel, 2, 8, small_policy(rule)); }

KvPlan in_blocks_of(std::int64_t tokens, KvPlan plan) {
  plan.compression.block_tokens = tokens;
  return plan;
}

KvPlan codes(bool prompts) {
  CodedPlanOptions options{.scope = CodedScope::kHead, .codes_prompts = prompts};
  testing::coarsen(options);
  return coded_plan(kModel, options);
}

struct Case {
  std::string name;
  bool continues_as_prompts, can_rewind;
  KvPlan plan;
  EngineOptions options{};
  SyntheticCheckpoint model = kModel;
};

std::vector<Case> cases() {
  const SyntheticCheckpoint mla{.model_type = "deepseek_v2"};
  const KvPlan of_mla =
      plain_plan(parse_model_config(testing::synthetic_config(mla), "config.json"));
  const KvPlan directions = principal_plan(kModel, 2, LatentBasis::kCalibrated, false, 2, 2);
  return {
      {"plain", true, true, plain()},
      {"plain, bfloat16", false, true, plain(), cache_of("bfloat16")},
      {"plain, int8", false, false, plain(), cache_of("int8")},
      {"sinks and a window", false, false, plain(), under("streamingllm:sink=2,window=78")},
      {"heavy hitters", false, false, plain(), under("h2o:budget=30")},
      {"MLA", true, true, of_mla, {}, mla},
      {"MLA, bfloat16", false, true, of_mla, cache_of("bfloat16"), mla},
      {"codes", false, false, codes(false)},
      {"prompts through codes", true, false, codes(true)},
      {"latents, rule ls", false, false, latents(MergeRule::kLs)},
      {"latents, rule ls, bfloat16", false, false, latents(MergeRule::kLs), cache_of("bfloat16")},
      {"latents, rule mean", false, false, latents(MergeRule::kMean)},
      {"latents, rule ls, in blocks of 64", false, false,
       in_blocks_of(64, latents(MergeRule::kLs))},
      {"a latent per layer", false, false, latents(MergeRule::kNone)},
      {"latents under a policy", false, false, latents(MergeRule::kLs), under("h2o:budget=30")},
      {"replaced projections", true, true, split_plan(kModel, 4, 4)},
      {"replaced projections, bfloat16", false, true, split_plan(kModel, 4, 4),
       cache_of("bfloat16")},
      {"directions", false, false, directions},
      {"directions, in blocks of 64", false, false, in_blocks_of(64, directions)},
      {"directions of the request", false, false,
       principal_plan(kModel, 2, LatentBasis::kRequest, false, 2, 2)},
      {"pairs", false, false, testing::paired_plan(kModel)},
      {"fused vectors", true, true, fused_upper_plan(kModel, FusionForm::kChannel, 2)},
      {"fused matrices", true, true, fused_upper_plan(kModel, FusionForm::kFull, 2)},
      {"fused vectors, bfloat16", false, true, fused_upper_plan(kModel, FusionForm::kChannel, 2),
       cache_of("bfloat16")},
  };
}

TEST(ContinuedTexts, AreReadAsOneTokenAtATime) {
  const testing::OneThread one;
  const Row ids = text_ids();
  for (Case& of : cases()) {
    for (const std::int64_t chunk : {0, 50}) {
      of.options.prefill_chunk = chunk;
      const auto engine = testing::load(of.model, of.plan, of.options);
      Sequence sequence = engine->new_sequence();
      const at::Tensor expected =
          testing::cached_logits(*engine, ids, kPrompt, 1, sequence).slice(0, kPrompt);
      const std::int64_t bytes = engine->pool().allocated_bytes();
      Sequence other = engine->new_sequence();
      engine->prefill({&other}, {part(ids, 0, kPrompt)}, Engine::Rows::kLast);
      const at::Tensor text =
          engine->extend_text({&other}, {part(ids, kPrompt, ids.size())}, Engine::Rows::kAll)
              .front();
      EXPECT_LT(mean_error(text, expected), kRounding) << of.name << ", chunks of " << chunk;
      EXPECT_EQ(engine->pool().allocated_bytes(), 2 * bytes) << of.name;  // nothing else stays
    }
  }
}

TEST(ContinuedTexts, AreReadInBatches) {
  const testing::OneThread one;
  const Row ids = text_ids();
  for (const Case& of : cases()) {
    const auto engine = testing::load(of.model, of.plan, of.options);
    std::vector<Sequence> sequences;
    std::vector<Sequence*> pointers;
    Engine::Ids texts;
    std::vector<at::Tensor> expected;
    for (const std::size_t prompt : {std::size_t{90}, std::size_t{33}}) {
      const Row row = part(ids, prompt / 3, ids.size());
      expected.push_back(testing::cached_logits(*engine, row, prompt, 1).slice(0, prompt));
      sequences.push_back(engine->new_sequence());
      engine->prefill({&sequences.back()}, {part(row, 0, prompt)}, Engine::Rows::kLast);
      texts.push_back(part(row, prompt, row.size()));
    }
    for (Sequence& sequence : sequences) {
      pointers.push_back(&sequence);
    }
    const std::vector<at::Tensor> found = engine->extend_text(pointers, texts, Engine::Rows::kAll);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_LT(mean_error(found[i], expected[i]), kRounding) << of.name << ", sequence " << i;
    }
  }
}

TEST(ContinuedTexts, FillAnEmptySequenceTokenByToken) {
  const testing::OneThread one;
  const Row ids = text_ids();
  for (const Case& of : cases()) {
    const auto engine = testing::load(of.model, of.plan, of.options);
    Sequence sequence = engine->new_sequence(), other = engine->new_sequence();
    const at::Tensor expected = engine->extend({&other}, {ids}, Engine::Rows::kAll).front();
    const at::Tensor text = engine->extend_text({&sequence}, {ids}, Engine::Rows::kAll).front();
    EXPECT_LT(mean_error(text, expected), kRounding) << of.name;
  }
}

TEST(ContinuesAsPrompts, WhereOnePassGivesTheLogitsOfTheContinuation) {
  const testing::OneThread one;
  const Row ids = text_ids();
  for (const Case& of : cases()) {
    const auto engine = testing::load(of.model, of.plan, of.options);
    EXPECT_EQ(engine->continues_as_prompts(), of.continues_as_prompts) << of.name;
    const double error = mean_error(testing::cached_logits(*engine, ids, kPrompt, 1),
                                    testing::cached_logits(*engine, ids, ids.size(), 1));
    EXPECT_TRUE(of.continues_as_prompts ? error < kRounding : error > 1e-5)
        << of.name << ": " << error;
  }
}

TEST(RewoundSequences, AreThoseThatNeverHadTheDroppedTokens) {
  const testing::OneThread one;
  const Row ids = text_ids(), text = part(ids, kPrompt, ids.size());
  for (const Case& of : cases()) {
    const auto engine = testing::load(of.model, of.plan, of.options);
    ASSERT_EQ(engine->can_rewind(), of.can_rewind) << of.name;
    Sequence sequence = engine->new_sequence();
    engine->prefill({&sequence}, {ids}, Engine::Rows::kLast);
    if (!of.can_rewind) {
      EXPECT_THROW(engine->rewind(sequence, kPrompt), Error) << of.name;
      continue;
    }
    EXPECT_THROW(engine->rewind(sequence, sequence.num_tokens() + 1), Error);
    for (const std::size_t num_tokens : {std::size_t{150}, kPrompt}) {
      engine->rewind(sequence, static_cast<std::int64_t>(num_tokens));
      ASSERT_EQ(sequence.cache().ids(), part(ids, 0, num_tokens));
      Sequence other = engine->new_sequence(), rewound = sequence.fork();
      engine->prefill({&other}, {part(ids, 0, num_tokens)}, Engine::Rows::kLast);
      EXPECT_EQ(sequence.cache().allocated_bytes(), other.cache().allocated_bytes()) << of.name;
      const Row rest = part(ids, num_tokens, ids.size());
      const auto logits = engine->extend({&rewound, &other}, {rest, rest}, Engine::Rows::kAll);
      EXPECT_LT(mean_error(logits[0], logits[1]), kRounding) << of.name << ", " << num_tokens;
    }
    engine->rewind(sequence, 0);
    Sequence other = engine->new_sequence();
    const auto logits = engine->prefill({&sequence, &other}, {text, text}, Engine::Rows::kAll);
    EXPECT_LT(mean_error(logits[0], logits[1]), kRounding) << of.name << ", emptied";
    EXPECT_EQ(sequence.cache().allocated_bytes(), other.cache().allocated_bytes()) << of.name;
  }
}

}  // namespace
}  // namespace kvc::continued_texts_test
