// Rows of one layer under policies of a fixed budget, against lists of tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/attention/kept_attention.h"
#include "runtime/kernels/query_quads.h"
#include "runtime/policies/token_policies.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

constexpr std::int64_t kHeads = 2, kChannels = 8;

KvPlan one_layer() { return plain_plan(1, kHeads, kChannels); }

StoreOptions stores(at::ScalarType dtype = at::kFloat) {
  return {.pool = std::make_shared<KvPool>(4), .dtype = dtype};
}

// One head's tokens as Algorithm 1 of the paper has them.
struct TokenLists {
  struct Slot {
    std::vector<std::int64_t> members;
    at::Tensor key;  // float64
  };
  std::vector<std::int64_t> context, ring;
  std::vector<Slot> slots;
  std::map<std::int64_t, double> scores;
};

class Simulation {
 public:
  Simulation(const TokenPolicy& policy, std::int64_t budget, std::int64_t num_tokens)
      : policy_(policy),
        layout_(running_layout(policy, budget)),
        key_(random_normal({num_tokens, kHeads, kChannels}, 1)),
        value_(random_normal({num_tokens, kHeads, kChannels}, 2)),
        attention_(at::rand({num_tokens, num_tokens, kHeads}, at::kFloat)),
        layer_{.rows = {one_layer(), stores(), kept_columns(policy)},
               .choice = {{.budget = budget}}},
        lists_(kHeads) {}

  void step(std::int64_t token) {
    layer_.rows.append(key_.narrow(0, token, 1), value_.narrow(0, token, 1),
                       at::tensor({token}, at::kLong));
    at::Tensor scores = at::empty({layer_.rows.num_rows(), kHeads}, at::kFloat);
    for (std::int64_t row = 0; row < scores.size(0); ++row) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        const std::int64_t position = layer_.rows.position(row, head);
        TokenLists& lists = lists_[static_cast<std::size_t>(head)];
        double& score = lists.scores[position];
        score = policy_.lambda * score + attention_[token][position][head].item<float>();
        scores[row][head] = score;
      }
    }
    layer_.rows.set_scores(scores);
    finish_token(policy_, {layer_.choice, {{&layer_.rows}}});
    for (std::int64_t head = 0; head < kHeads; ++head) {
      lists_step(token, head);
    }
  }

  const KeptRows& rows() const { return layer_.rows; }

  void expect_equal(std::int64_t num_tokens) const {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const TokenLists& lists = lists_[static_cast<std::size_t>(head)];
      std::vector<std::int64_t> expected = lists.context, actual;
      expected.insert(expected.end(), lists.ring.begin(), lists.ring.end());
      std::sort(expected.begin(), expected.end());
      for (std::int64_t row = 0; row < rows().num_rows(); ++row) {
        actual.push_back(rows().position(row, head));
        std::vector<float> key(kChannels), value(kChannels);
        rows().read(row, head, key.data(), value.data());
        EXPECT_TRUE(at::equal(at::tensor(key), key_[actual.back()][head]));
        EXPECT_TRUE(at::equal(at::tensor(value), value_[actual.back()][head]));
      }
      std::sort(actual.begin(), actual.end());
      ASSERT_EQ(actual, expected) << "head " << head << " after " << num_tokens;
      expect_slots(lists, head, num_tokens);
    }
  }

 private:
  void lists_step(std::int64_t token, std::int64_t head) {
    TokenLists& lists = lists_[static_cast<std::size_t>(head)];
    lists.ring.push_back(token);
    const auto room = static_cast<std::size_t>(policy_.residual_slots) - lists.slots.size();
    // Until slots are in use their places are the context's.
    const auto context =
        static_cast<std::size_t>(layout_.context) + (lists.slots.empty() ? room : 0);
    if (lists.ring.size() > static_cast<std::size_t>(layout_.ring)) {
      lists.context.push_back(lists.ring.front());
      lists.ring.erase(lists.ring.begin());
    }
    if (lists.context.size() <= context) {
      return;
    }
    std::sort(lists.context.begin(), lists.context.end());
    std::vector<std::int64_t> leaving;
    while (lists.context.size() > static_cast<std::size_t>(layout_.context)) {
      const auto least =
          std::min_element(lists.context.begin(), lists.context.end(),
                           [&](auto a, auto b) { return lists.scores[a] < lists.scores[b]; });
      leaving.push_back(*least);
      lists.context.erase(least);
    }
    std::sort(leaving.begin(), leaving.end());
    for (const std::int64_t left : leaving) {
      merge(lists, head, left);
    }
  }

  void merge(TokenLists& lists, std::int64_t head, std::int64_t token) const {
    const at::Tensor key = key_[token][head].to(at::kDouble);
    if (policy_.residual_slots == 0) {
      return;
    }
    if (lists.slots.size() < static_cast<std::size_t>(policy_.residual_slots)) {
      lists.slots.push_back({{token}, key});
      return;
    }
    const auto best =
        std::max_element(lists.slots.begin(), lists.slots.end(), [&](const auto& a, const auto& b) {
          return a.key.dot(key).template item<double>() < b.key.dot(key).template item<double>();
        });
    best->members.push_back(token);
    const auto count = static_cast<double>(best->members.size());
    best->key = ((count - 1) * best->key + key) / count;
  }

  void expect_slots(const TokenLists& lists, std::int64_t head, std::int64_t num_tokens) const {
    const ResidualSlots& slots = rows().residual();
    double merged = 0;
    for (std::size_t i = 0; i < lists.slots.size(); ++i) {
      const std::vector<std::int64_t>& members = lists.slots[i].members;
      const std::int64_t row = static_cast<std::int64_t>(i) * kHeads + head;
      EXPECT_EQ(slots.count()[row], static_cast<float>(members.size()));
      merged += slots.count()[row];
      const at::Tensor of_members = at::tensor(members, at::kLong);
      for (const auto& [numbers, all] : {std::pair(slots.key(), key_), {slots.value(), value_}}) {
        const at::Tensor mean =
            all.index_select(0, of_members).select(1, head).to(at::kDouble).mean(0);
        const at::Tensor slot =
            at::from_blob(const_cast<float*>(numbers) + row * kChannels, {kChannels}, at::kFloat);
        EXPECT_TRUE(tensors_close(slot, mean.to(at::kFloat), 1e-5)) << "slot " << i;
      }
    }
    if (policy_.residual_slots > 0) {
      EXPECT_EQ(merged + static_cast<double>(rows().num_rows()), static_cast<double>(num_tokens));
    }
  }

  TokenPolicy policy_;
  RunningLayout layout_;
  at::Tensor key_, value_, attention_;  // attention_[query][token][head]
  KeptLayer layer_;
  std::vector<TokenLists> lists_;
};

TEST(RunningPolicy, MergesWhatThePaperMerges) {
  at::manual_seed(3);
  for (const char* text :
       {"zeromerge:budget=10,residual=1", "zeromerge:budget=12,residual=3,lambda=0.9",
        "zeromerge:budget=9,residual=0,lambda=1", "h2o:budget=8"}) {
    SCOPED_TRACE(text);
    const TokenPolicy policy = parse_token_policy(text);
    Simulation simulation(policy, policy.budget.tokens, 60);
    for (std::int64_t token = 0; token < 60; ++token) {
      simulation.step(token);
      simulation.expect_equal(token + 1);
    }
  }
}

TEST(RunningPolicy, HoldsTheSameMemoryHoweverLongTheText) {
  const TokenPolicy policy = parse_token_policy("zeromerge:budget=10,residual=2");
  Simulation simulation(policy, 10, 100);
  std::int64_t bytes = 0;
  for (std::int64_t token = 0; token < 100; ++token) {
    simulation.step(token);
    EXPECT_EQ(
        simulation.rows().bytes(),
        kept_layer_bytes(one_layer(), policy, simulation.rows().tokens(), KvDtype::kFloat32, 4));
    bytes = token < 20 ? simulation.rows().bytes() : bytes;
    EXPECT_TRUE(token < 20 || simulation.rows().bytes() == bytes);
  }
  // 8 rows and one for the newest in pages of 4; keys, values, positions and scores; 2 slots.
  EXPECT_EQ(bytes,
            12 * kHeads * (2 * kChannels * 4 + 4 + 4) + 2 * kHeads * (2 * kChannels * 4 + 4));
}

TEST(RunningPolicy, TheLastQueriesAreEnoughForDecayingScores) {
  for (const char* text :
       {"zeromerge:lambda=0.9", "zeromerge:lambda=0.98", "zeromerge:lambda=0.5"}) {
    const TokenPolicy policy = parse_token_policy(text);
    const std::int64_t num_tokens = 1200, enough = scoring_queries(policy, num_tokens);
    ASSERT_LT(enough, num_tokens);
    const at::Tensor query = random_normal({num_tokens, 2 * kHeads, kChannels}, 4);
    const at::Tensor key = random_normal({num_tokens, kHeads, kChannels}, 5);
    const auto scores = [&](std::int64_t count) {
      return attention_scores({.policy = policy,
                               .rule = {},
                               .num_new = num_tokens,
                               .query = query.narrow(0, num_tokens - count, count)},
                              key, {});
    };
    const double left_out = (scores(num_tokens) - scores(enough)).abs().max().item<double>();
    EXPECT_LT(left_out, 2 * kScoreError + 2e-7) << text;  // two query heads per KV head; rounding
    EXPECT_GT((scores(num_tokens) - scores(enough / 8)).abs().max().item<double>(), 1e-4) << text;
  }
}

// Theorem 3.1: merging never takes attention from a token that is whole.
TEST(RunningPolicy, WholeTokensGetNoLessAttentionThanInTheFullCache) {
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory.path(), {.num_layers = 1});
  const Decoder decoder(Checkpoint::open(directory.path()), at::kFloat);
  const ModelConfig& config = decoder.config();
  const KvPlan plan = plain_plan(1, config.num_kv_heads, config.head_dim);
  for (const double alpha : {0.0, 0.6, 1.0}) {
    TokenPolicy policy = parse_token_policy("zeromerge:budget=9,residual=2");
    policy.alpha = alpha;
    KeptLayer layer{.rows = {plan, stores(), kept_columns(policy)}, .choice = {{.budget = 9}}};
    const std::int64_t num_tokens = 40;
    const at::Tensor key = random_normal({num_tokens, config.num_kv_heads, config.head_dim}, 6);
    const at::Tensor query = random_normal({1, config.num_heads, config.head_dim}, 7);
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      layer.rows.append(key.narrow(0, token, 1), key.narrow(0, token, 1),
                        at::tensor({token}, at::kLong));
      layer.rows.set_scores(random_normal({layer.rows.num_rows(), config.num_kv_heads},
                                          static_cast<std::uint64_t>(token)));
      finish_token(policy, {layer.choice, {{&layer.rows}}});
    }
    std::vector<float> log_sum;
    RowScores scores{.after = [&](const float* of_heads, std::int64_t, std::int64_t) {
      log_sum.assign(of_heads, of_heads + config.num_heads);
    }};
    attend_kept(decoder, 0, layer.rows, policy, query, at::tensor({num_tokens}, at::kLong),
                &scores);
    const std::int64_t heads_per_kv = config.num_heads / config.num_kv_heads;
    const QuadHeads quads(config.num_heads, config.num_kv_heads);
    for (std::int64_t head = 0; head < config.num_heads; ++head) {
      const at::Tensor keys = key.select(1, head / heads_per_kv);
      const at::Tensor full =
          (at::mv(keys, query[0][head]) / std::sqrt(static_cast<double>(config.head_dim)))
              .softmax(0);
      for (std::int64_t row = 0; row < layer.rows.num_rows(); ++row) {
        const double kept =
            std::exp(static_cast<double>(
                         scores.scores.numbers[quads.place(head, row, scores.scores.stride)]) -
                     static_cast<double>(log_sum[static_cast<std::size_t>(head)]));
        const std::int64_t position = layer.rows.position(row, head / heads_per_kv);
        EXPECT_GE(kept, full[position].item<double>() * (1 - 1e-5)) << position;
      }
    }
  }
}

}  // namespace
}  // namespace kvc
