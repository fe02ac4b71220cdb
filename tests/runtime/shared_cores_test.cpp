// Steps that leave cores to other work: the same numbers by fewer threads.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "model/parallel.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/test_tensors.h"

namespace kvc::shared_cores_test {
namespace {

using testing::CodedScope;
using ::testing::Each;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;

constexpr int kThreads = 4;
constexpr std::int64_t kPromptTokens = 1500;  // so that every thread has rows to attend to

// As many threads for ATen while alive, whatever the machine has.
class Threads {
 public:
  Threads() : before_(at::get_num_threads()) { at::set_num_threads(kThreads); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

SyntheticCheckpoint wide_model() {
  SyntheticCheckpoint model{.hidden_size = 512};
  model.num_heads = 8;
  model.num_kv_heads = 2;
  model.head_dim = 64;
  model.intermediate_size = 1024;
  model.max_position_embeddings = 4096;
  model.dtype = "bfloat16";
  return model;
}

at::Tensor next_logits(const Engine& engine, const Sequence& prompt, int threads) {
  Sequence sequence = prompt.fork();
  const FewerThreads fewer(threads);
  const Row ids = random_ids(1, 4, 96, 2).front();
  std::vector<at::Tensor> logits;
  for (const std::int64_t id : ids) {
    logits.push_back(engine.extend({&sequence}, {{id}}, Engine::Rows::kLast).front());
  }
  return at::cat(logits);
}

void expect_equal_steps(const Engine& engine) {
  const Threads threads;
  Sequence prompt = engine.new_sequence();
  engine.prefill({&prompt}, random_ids(1, kPromptTokens, 96, 1), Engine::Rows::kLast);
  const at::Tensor expected = next_logits(engine, prompt, kThreads);
  for (int fewer = 1; fewer < kThreads; ++fewer) {
    EXPECT_TRUE(at::equal(next_logits(engine, prompt, fewer), expected)) << fewer;
  }
}

TEST(SharedCores, ArePlannedAsAllOfThem) {
  const Threads threads;
  {
    const FewerThreads two(2);
    EXPECT_EQ(at::get_num_threads(), 2);
    EXPECT_EQ(planned_threads(), kThreads);
    const FewerThreads none(-1), more(8);
    EXPECT_EQ(at::get_num_threads(), 1);
    EXPECT_EQ(planned_threads(), kThreads);
  }
  EXPECT_EQ(at::get_num_threads(), kThreads);
  EXPECT_EQ(planned_threads(), kThreads);
}

TEST(SharedCores, ArePlannedAlikeInLoopsThatTheyShare) {
  const Threads threads;
  const FewerThreads two(2);
  std::array<int, 2> planned{};
  parallel_pieces(2, 1, [&](std::int64_t begin, std::int64_t end) {
    std::fill(planned.begin() + begin, planned.begin() + end, planned_threads());
  });
  EXPECT_THAT(planned, Each(kThreads));
}

TEST(SharedCores, ChangeNoStepOverPlainCaches) {
  for (const char* dtype : {"bfloat16", "int8", "int4"}) {
    SCOPED_TRACE(dtype);
    expect_equal_steps(*testing::load_plain(wide_model(), testing::cache_of(dtype)));
  }
}

TEST(SharedCores, ChangeNoStepUnderPolicies) {
  for (const char* policy : {"h2o:budget=1000", "snapkv:budget=1000", "zeromerge:budget=1000"}) {
    SCOPED_TRACE(policy);
    EngineOptions options;
    options.policy = parse_token_policy(policy);
    expect_equal_steps(*testing::load_plain(wide_model(), options));
  }
}

TEST(SharedCores, ChangeNoStepOverConvertedLayers) {
  const SyntheticCheckpoint model = wide_model();
  CompressionSettings merging = testing::small_policy(MergeRule::kLs);
  std::vector<KvPlan> plans{
      testing::grouped_plan(model, 2, 96, merging),
      testing::split_plan(model, 64, 64),
      testing::fused_upper_plan(model, FusionForm::kChannel, 2),
      testing::principal_plan(model, 2, LatentBasis::kCalibrated, false, 64, 64),
      testing::coded_plan(model, {.scope = CodedScope::kHead, .coefficients = {0, 0, 0, 0, 64}}),
      testing::coded_plan(model, {.scope = CodedScope::kLayer, .coefficients = {0, 0, 0, 0, 64}}),
      testing::coded_plan(model, {.scope = CodedScope::kHead, .bases = 32, .rotated = true})};
  for (const KvPlan& plan : plans) {
    SCOPED_TRACE(plan.method + " " + std::to_string(&plan - plans.data()));
    expect_equal_steps(*testing::load(model, plan));
  }
}

}  // namespace
}  // namespace kvc::shared_cores_test
