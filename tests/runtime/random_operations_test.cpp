// Sequences that are read, extended, forked and dropped at random, held against what the same tokens
// give in fresh sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/policy_reference.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cache_of;
using testing::kRounding;
using testing::load;
using testing::load_plain;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

struct Call {
  bool prompt;
  Row ids;
};

struct Tracked {
  Sequence sequence;
  std::vector<Call> calls;  // that made it
  at::Tensor logits;        // after the last
};

// What calls give without a cache: the last one's last logits, [vocabulary].
using Reference = std::function<at::Tensor(const std::vector<Call>&)>;

constexpr std::int64_t kMostTokens = 120;
constexpr std::size_t kMostSequences = 8;

class RandomOperations {
 public:
  RandomOperations(const Engine& engine, const Reference& reference, unsigned seed)
      : engine_(engine), reference_(reference), random_(seed) {}

  void step() {
    const unsigned kind = random_() % 16;
    if (tracked_.empty() || (kind == 0 && tracked_.size() < kMostSequences)) {
      tracked_.push_back({engine_.new_sequence(), {}, {}});
      call(tracked_.back(), true);
      return;
    }
    Tracked& chosen = tracked_[random_() % tracked_.size()];
    if (kind <= 2 && tracked_.size() < kMostSequences) {
      tracked_.push_back({chosen.sequence.fork(), chosen.calls, chosen.logits});
    } else if (kind == 3 || chosen.sequence.num_tokens() > kMostTokens) {
      std::swap(chosen, tracked_.back());
      tracked_.pop_back();
    } else {
      call(chosen, kind <= 5);
    }
  }

  // A random sequence has the logits of a fresh one that heard the same calls, and, to the accuracy of
  // what stores it, those without a cache.
  void check(double accuracy) {
    if (tracked_.empty()) {
      return;
    }
    const Tracked& chosen = tracked_[random_() % tracked_.size()];
    Sequence fresh = engine_.new_sequence();
    at::Tensor expected;
    for (const Call& made : chosen.calls) {
      expected = run(fresh, made);
    }
    ASSERT_TRUE(tensors_close(chosen.logits, expected, kRounding));
    ASSERT_EQ(chosen.sequence.cache().allocated_bytes(), fresh.cache().allocated_bytes());
    ASSERT_EQ(chosen.sequence.cache().allocated_bytes(), formula(fresh));
    if (accuracy > 0) {
      ASSERT_TRUE(tensors_close(chosen.logits.view({-1}), reference_(chosen.calls), accuracy));
    }
  }

  // The longest sequence holds what its type and plan are about.
  void check_forms() const {
    std::int64_t codes = 0, decided = 0, left = 0;
    for (const Tracked& tracked : tracked_) {
      const KvCache& cache = tracked.sequence.cache();
      if (cache.plan().layers.back() == KvSource::kPlain && cache.all_kept().empty()) {
        codes = std::max(codes, cache.plain_layer(cache.plan().num_layers() - 1).num_codes());
      }
      for (const KeptLayer& layer : cache.all_kept()) {
        left += layer.rows.has_left() ? 1 : 0;
      }
      for (const CodedStore& layers : cache.all_coded()) {
        codes = std::max(codes, layers.num_codes());
      }
      for (const GroupTokens& tokens : cache.tokens()) {
        decided = std::max(decided, tokens.merged + tokens.unmerged);
      }
    }
    EXPECT_EQ(codes > 0, is_integer(engine_.kv_dtype()) || !engine_.plan().coded.empty());
    EXPECT_EQ(decided > 0, !engine_.plan().groups.empty());
    EXPECT_EQ(left > 0, engine_.policy().kind != TokenPolicyKind::kFull);
  }

  // Shared blocks count once.
  void check_bytes() const {
    std::int64_t separate = 0;
    for (const Tracked& tracked : tracked_) {
      separate += tracked.sequence.cache().allocated_bytes();
    }
    ASSERT_LE(engine_.pool().allocated_bytes(), separate);
  }

 private:
  std::int64_t formula(const Sequence& sequence) const {
    std::int64_t bytes = 0;
    for (const KeptLayer& layer : sequence.cache().all_kept()) {
      bytes += kept_layer_bytes(engine_.plan(), engine_.policy(), layer.rows.tokens(),
                                engine_.kv_dtype(), engine_.pool().page_tokens());
    }
    return bytes > 0 ? bytes
                     : plan_bytes(engine_.plan(), sequence.num_tokens(), sequence.cache().tokens(),
                                  engine_.kv_dtype(), engine_.pool().page_tokens());
  }

  at::Tensor run(Sequence& sequence, const Call& made) const {
    return made.prompt ? engine_.prefill({&sequence}, {made.ids}, Engine::Rows::kLast).front()
                       : engine_.extend({&sequence}, {made.ids}, Engine::Rows::kLast).front();
  }

  void call(Tracked& tracked, bool prompt) {
    Call made{prompt, {}};
    const unsigned count = prompt ? 1 + random_() % 40 : 1 + random_() % 3;
    for (unsigned i = 0; i < count; ++i) {
      made.ids.push_back(static_cast<std::int64_t>(random_()) % engine_.config().vocab_size);
    }
    tracked.logits = run(tracked.sequence, made);
    tracked.calls.push_back(made);
  }

  const Engine& engine_;
  const Reference& reference_;
  std::mt19937 random_;
  std::vector<Tracked> tracked_;
};

void run_operations(const Engine& engine, const Reference& reference, int count, double accuracy) {
  const testing::OneThread one;
  {
    RandomOperations operations(engine, reference, 1);
    for (int i = 0; i < count; ++i) {
      operations.step();
      if (i % 40 == 0) {
        operations.check(accuracy);
        operations.check_bytes();
      }
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
    operations.check_forms();
  }
  EXPECT_EQ(engine.pool().num_blocks(), 0);
  EXPECT_EQ(engine.pool().num_slabs(), 0);
  EXPECT_EQ(engine.pool().allocated_bytes(), 0);
}

// One pass over all that was heard.
void run_operations(const Engine& engine, const SyntheticCheckpoint& model, int count,
                    double accuracy) {
  const testing::PlainModel plain(model);
  const Reference reference = [&](const std::vector<Call>& calls) {
    Row ids;
    for (const Call& made : calls) {
      ids.insert(ids.end(), made.ids.begin(), made.ids.end());
    }
    return plain.logits(ids)[-1];
  };
  run_operations(engine, reference, count, accuracy);
}

SyntheticCheckpoint tiny_model() {
  SyntheticCheckpoint model{.model_type = "qwen3"};
  model.hidden_size = 16;
  model.num_heads = 2;
  model.num_kv_heads = 1;
  model.intermediate_size = 16;
  model.vocab_size = 32;
  return model;
}

// A group of `layers` layers before plain ones, with so short a window that blocks leave it all the time.
KvPlan short_window_plan(const SyntheticCheckpoint& model, int layers, MergeRule rule,
                         UnmergedForm unmerged = UnmergedForm::kPlain) {
  CompressionSettings policy = testing::small_policy(rule);
  policy.unmerged = unmerged;
  KvPlan plan = testing::grouped_plan(model, std::max(layers, 1), 8, policy);
  plan.groups.resize(layers > 0 ? 1 : 0);
  for (std::size_t layer = static_cast<std::size_t>(layers); layer < plan.layers.size(); ++layer) {
    plan.layers[layer] = KvSource::kPlain;
  }
  return plan;
}

TEST(RandomOperations, PlainFloatsEqualOnePassWithoutACache) {
  const SyntheticCheckpoint model = tiny_model();
  run_operations(*load_plain(model), model, 2500, kRounding);
}

TEST(RandomOperations, PlainIntegersAreAsAccurateAsTheirType) {
  const SyntheticCheckpoint model = tiny_model();
  const KvPlan plan = short_window_plan(model, 0, MergeRule::kLs);
  run_operations(*load(model, plan, cache_of("int8")), model, 2500, 0.05);
}

TEST(RandomOperations, MergedFloatsEqualFreshSequences) {
  const SyntheticCheckpoint model = tiny_model();
  const KvPlan plan = short_window_plan(model, 2, MergeRule::kLs);
  run_operations(*load(model, plan, cache_of("bfloat16")), model, 2500, 0);
}

TEST(RandomOperations, MergedIntegersEqualFreshSequences) {
  const SyntheticCheckpoint model = tiny_model();
  for (const UnmergedForm unmerged : {UnmergedForm::kPlain, UnmergedForm::kLatent}) {
    const KvPlan plan = short_window_plan(model, 2, MergeRule::kMean, unmerged);
    run_operations(*load(model, plan, cache_of("int4")), model, 1250, 0);
  }
}

TEST(RandomOperations, CodedFloatsEqualFreshSequences) {
  const SyntheticCheckpoint model = tiny_model();
  for (const testing::CodedScope scope :
       {testing::CodedScope::kHead, testing::CodedScope::kGroup}) {
    const KvPlan plan =
        testing::coded_plan(model, {.scope = scope, .coefficients = {0, 2, 0, 3, 7}, .gain = true});
    run_operations(*load(model, plan, cache_of("bfloat16")), model, 1250, 0);
  }
}

TEST(RandomOperations, CodedKeysApartEqualFreshSequences) {
  const SyntheticCheckpoint model = tiny_model();
  const int pairs = static_cast<int>(model.head_dim) / 2;
  for (const auto& [bases, rotated] : {std::pair(1, false), {pairs, false}, {pairs, true}}) {
    const KvPlan plan = testing::coded_plan(model, {.scope = testing::CodedScope::kHead,
                                                    .coefficients = {0, 2, 0, 3, 7},
                                                    .gain = true,
                                                    .bases = bases,
                                                    .rotated = rotated});
    run_operations(*load(model, plan, cache_of("bfloat16")), model, 1250, 0);
  }
}

TEST(RandomOperations, CodedPromptsEqualFreshSequences) {
  const SyntheticCheckpoint model = tiny_model();
  const int pairs = static_cast<int>(model.head_dim) / 2;
  testing::CodedPlanOptions options{
      .coefficients = {0, 2, 0, 3, 7}, .gain = true, .codes_prompts = true};
  for (const auto& [scope, bases, rotated] : {std::tuple(testing::CodedScope::kHead, 0, false),
                                              {testing::CodedScope::kLayer, 1, false},
                                              {testing::CodedScope::kHead, 2, false},
                                              {testing::CodedScope::kHead, pairs, false},
                                              {testing::CodedScope::kLayer, pairs, true},
                                              {testing::CodedScope::kGroup, 0, false}}) {
    options.scope = scope;
    options.bases = bases;
    options.rotated = rotated;
    KvPlan plan = testing::coded_plan(model, options);
    run_operations(*load(model, plan, cache_of("bfloat16")), model, 1250, 0);
    if (scope != testing::CodedScope::kGroup) {  // layers read prompts one after the other
      plan.compression.sink_tokens = 0;
      plan.compression.window_tokens = rotated ? 32 : 0;
      run_operations(*load(model, plan, cache_of("bfloat16")), model, 600, 0);
    }
  }
}

// Dense attention over lists of the tokens that are kept.
TEST(RandomOperations, EvictedTokensAreThoseOfLists) {
  const SyntheticCheckpoint model = tiny_model();
  const KvPlan plan = plain_plan(model.num_layers, model.num_kv_heads, model.head_dim);
  std::vector<testing::ReferenceSet> sets;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    sets.push_back({{layer}});
  }
  for (const char* policy : {"streamingllm:sink=2,window=14", "h2o:budget=16",
                             "snapkv:budget=16,window=5", "zeromerge:budget=16,residual=3"}) {
    SCOPED_TRACE(policy);
    const Reference reference = [&](const std::vector<Call>& calls) {
      testing::PolicyReference lists(model, plan, parse_token_policy(policy), sets);
      at::Tensor logits;
      for (const Call& made : calls) {
        if (made.prompt) {
          logits = lists.read(made.ids, true);
          continue;
        }
        for (const std::int64_t id : made.ids) {
          logits = lists.read({id}, false);
        }
      }
      return logits[-1];
    };
    run_operations(*load_plain(model, testing::under(policy)), reference, 1250, 5 * kRounding);
  }
}

// Plain layers become integers beside coded ones.
TEST(RandomOperations, CodesBesideIntegersEqualFreshSequences) {
  const SyntheticCheckpoint model = tiny_model();
  KvPlan plan = testing::coded_plan(model, {.scope = testing::CodedScope::kLayer});
  plan.layers.back() = KvSource::kPlain;
  plan.coded.pop_back();
  run_operations(*load(model, plan, cache_of("int8")), model, 1250, 0);
}

}  // namespace
}  // namespace kvc
