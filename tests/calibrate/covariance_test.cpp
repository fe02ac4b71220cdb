#include "calibrate/covariance.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/hdf5.h"
#include "core/statistics_file.h"
#include "model/decoder.h"
#include "tests/testing/error_of.h"
#include "tests/testing/statistics.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::equal_to;
using ::testing::HasSubstr;
using testing::random_ids;
using testing::read_dataset;
using testing::token_set;
using Sequences = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kSinks = 3;

// What every layer's attention got, while the whole model runs in memory.
class KeptInputs : public Attention {
 public:
  explicit KeptInputs(const Decoder& decoder)
      : decoder_(decoder), full_(decoder.config(), decoder.rope()) {}
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    key.push_back(input.weights.k_norm.over_heads(input.key));
    value.push_back(input.value);
    query.push_back(rotate_tokens(decoder_.rope(), layer, input.query, batch));
    return full_.attend(layer, input, batch);
  }
  at::Tensor rows(std::size_t layer) const {  // behind the sinks
    const at::Tensor all = at::cat({key[layer].flatten(1), value[layer].flatten(1)}, 1);
    return all.narrow(0, kSinks, all.size(0) - kSinks).to(at::kDouble);
  }
  std::vector<at::Tensor> query, key, value;

 private:
  const Decoder& decoder_;
  FullAttention full_;
};

class CovarianceTest : public testing::StatisticsTest {
 protected:
  std::filesystem::path run(const Sequences& sequences, const std::string& name,
                            int layers_per_group = 1, bool attention = false) {
    covariance(checkpoint_, token_set(sequences),
               {{layers_per_group, kSinks}, attention, attention}, directory_ / name, false);
    return directory_ / name;
  }
};

TEST_P(CovarianceTest, EqualsADirectComputation) {
  const Sequences sequences = {random_ids(1, 11, 96, 1).front(), random_ids(1, 2, 96, 2).front()};
  const Decoder decoder(checkpoint_, at::kFloat);
  KeptInputs seen(decoder);
  decoder.forward(TokenBatch::of({sequences.front()}), seen);
  const auto file = run(sequences, "c.h5", 3);
  EXPECT_EQ(Hdf5Reader(file).ints("/num_tokens", {1}).front(), 11 - kSinks);
  const at::Tensor group = at::cat({seen.rows(0), seen.rows(1), seen.rows(2)}, 1);
  EXPECT_TRUE(equal_to(read_dataset(file, "/joint/0/sum"), group.sum(0), 1e-5));
  EXPECT_TRUE(
      equal_to(read_dataset(file, "/joint/0/second_moment"), at::mm(group.t(), group), 1e-5));
  EXPECT_TRUE(equal_to(read_dataset(file, "/joint/3/second_moment"),
                       at::mm(seen.rows(3).t(), seen.rows(3)), 1e-5));
}

TEST_P(CovarianceTest, RunsAddUpInAnyOrder) {
  const Sequences all = random_ids(4, 12, 96, 4);
  const auto whole = run(all, "all.h5", 2, true);
  const auto a = run({all[2], all[0]}, "a.h5", 2, true);
  const auto b = run({all[1], all[3]}, "b.h5", 2, true);
  const auto sum = directory_ / "sum.h5";
  add_covariances({b, a}, sum, false);
  for (const char* path : {"/joint/0/sum", "/joint/2/second_moment", "/attention/1/key_metric",
                           "/attention/3/value_metric"}) {
    EXPECT_TRUE(equal_to(read_dataset(sum, path), read_dataset(whole, path), 1e-12)) << path;
  }
  const auto other = run(all, "other.h5", 4, true);
  EXPECT_THROW(add_covariances({whole, other}, directory_ / "no.h5", false), Error);
}

TEST_P(CovarianceTest, SequencesTooShortForAQueryAddNothingToTheMetric) {
  const auto whole = random_ids(1, 24, 96, 1).front(), part = random_ids(1, 6, 96, 2).front();
  const auto with = run({part, whole}, "with.h5", 1, true);
  const auto without = run({whole}, "without.h5", 1, true);
  for (const char* path : {"/attention/1/key_metric", "/attention/2/value_metric"}) {
    EXPECT_TRUE(equal_to(read_dataset(with, path), read_dataset(without, path), 1e-12)) << path;
  }
}

// What the metric promises: of all queries, the squared change of attention's output when one cached key or
// value changes a little. Every eighth query stands for eight, so these are the queries compared.
TEST_P(CovarianceTest, AttentionMetricPredictsHowOutputsMove) {
  const Sequences sequences = {random_ids(1, 24, 96, 1).front()};
  const auto file = run(sequences, "c.h5", 1, true);
  const Decoder decoder(checkpoint_, at::kFloat);
  KeptInputs seen(decoder);
  const TokenBatch batch = TokenBatch::of(sequences);
  decoder.forward(batch, seen);
  const int layer = 1;
  const ModelConfig& config = decoder.config();
  const at::Tensor o_proj = decoder.layer(layer).o_proj.weight.to(at::kDouble);
  const auto outputs = [&](const at::Tensor& key, const at::Tensor& value) {
    const at::Tensor rotated = rotate_tokens(decoder.rope(), layer, key, batch).to(at::kDouble);
    return causal_attention(seen.query[layer].to(at::kDouble), rotated, value.to(at::kDouble),
                            attention_rule(config, layer));
  };
  // Per query head, since the metric adds what single heads do.
  const auto moved = [&](const at::Tensor& key, const at::Tensor& value, std::int64_t token) {
    const at::Tensor change =
        (outputs(key, value) - outputs(seen.key[layer], seen.value[layer])).unflatten(1, {4, 8});
    double sum = 0;
    for (std::int64_t query = 7; query < 24; query += 8) {
      for (std::int64_t head = 0; head < 4; ++head) {
        const at::Tensor part = o_proj.narrow(1, head * 8, 8);
        sum += query > token ? at::mv(part, change[query][head]).square().sum().item<double>() : 0;
      }
    }
    return 8 * sum;
  };
  for (const bool is_key : {true, false}) {
    const at::Tensor metric =
        read_dataset(file, fmt::format("/attention/{}/{}_metric", layer, is_key ? "key" : "value"));
    const at::Tensor direction = testing::random_normal({2, 8}, 5);
    const double step = is_key ? 1e-2 : 1;
    double expected = 0;
    for (std::int64_t token = kSinks; token < 24; ++token) {
      at::Tensor key = seen.key[layer].clone(), value = seen.value[layer].clone();
      (is_key ? key : value)[token].add_(direction, step);
      expected += moved(key, value, token) / (step * step);
    }
    double predicted = 0;
    for (std::int64_t head = 0; head < 2; ++head) {
      const at::Tensor d = direction[head].to(at::kDouble);
      predicted += d.dot(at::mv(metric[head], d)).item<double>();
    }
    EXPECT_NEAR(predicted, expected, 0.02 * expected) << (is_key ? "key" : "value");
  }
}

TEST_P(CovarianceTest, TheRestOfTheMetricDoesNotNeedItsKeys) {
  const Sequences sequences = random_ids(1, 24, 96, 1);
  const auto whole = run(sequences, "whole.h5", 1, true);
  const auto part = directory_ / "part.h5";
  covariance(checkpoint_, token_set(sequences), {{1, kSinks}, false, true}, part, false);
  for (const char* name : {"query_metric", "value_metric", "distance_weight"}) {
    const std::string path = fmt::format("/attention/2/{}", name);
    EXPECT_TRUE(at::equal(read_dataset(part, path), read_dataset(whole, path))) << name;
  }
  EXPECT_FALSE(Hdf5Reader(part).contains("/attention/2/key_metric"));
}

// How far attention looks: the factors of the key's metric, by distance. A rotation changes no query's length.
TEST_P(CovarianceTest, DistancesAndQueriesCarryTheKeyMetricsWeights) {
  const std::int64_t length = 16;
  const auto file = run({random_ids(1, length, 96, 1).front()}, "c.h5", 1, true);
  const Decoder decoder(checkpoint_, at::kFloat);
  KeptInputs seen(decoder);
  decoder.forward(TokenBatch::of({random_ids(1, length, 96, 1).front()}), seen);
  const AttentionReach reach = read_attention_reach(file, checkpoint_.hash(), 0, 4, 2, 8);
  const at::Tensor weight = read_dataset(file, "/attention/0/distance_weight");
  EXPECT_EQ(reach.distance_weight.size(), static_cast<std::size_t>(weight.numel()));
  EXPECT_EQ(reach.num_tokens, length - kSinks);
  EXPECT_EQ(weight.select(1, 0).abs().max().item<double>(), 0) << "a token's own key";
  EXPECT_EQ(weight.slice(1, length - kSinks).abs().max().item<double>(), 0) << "beyond the text";
  EXPECT_GT(weight.slice(1, 1, 5).min().item<double>(), 0);
  const auto trace = [&](const char* name) {
    return read_dataset(file, fmt::format("/attention/0/{}_metric", name)).diagonal(0, 1, 2).sum(1);
  };
  EXPECT_TRUE(equal_to(trace("query"), trace("key"), 1e-5));
  // Query 7 alone, whose distances end at 4: its length squared times the weights is the trace.
  const auto first = run({random_ids(1, 8, 96, 1).front()}, "d.h5", 1, true);
  const at::Tensor turned = seen.query[0][7].to(at::kDouble) / decoder.config().attention_factor(0);
  const at::Tensor query = turned.square().sum(1);  // [num_heads]
  const at::Tensor weighted = (read_dataset(first, "/attention/0/distance_weight").sum(1) * query)
                                  .unflatten(0, {2, 2})
                                  .sum(1);
  EXPECT_TRUE(equal_to(read_dataset(first, "/attention/0/query_metric").diagonal(0, 1, 2).sum(1),
                       weighted, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Architectures, CovarianceTest,
                         ::testing::Values("llama", "llama_yarn", "qwen2", "qwen3"));

class CovarianceFileTest : public CovarianceTest {};
INSTANTIATE_TEST_SUITE_P(Llama, CovarianceFileTest, ::testing::Values("llama"));

TEST_P(CovarianceFileTest, RefusesTextOfSinksAloneAndOtherCheckpoints) {
  EXPECT_THAT(error_of([&] { run({{1, 2, 3}, {4}}, "c.h5"); }), HasSubstr("--sink"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "c.h5"));
  const auto file = run(random_ids(1, 9, 96, 1), "d.h5");
  EXPECT_THROW(read_joint_sum(file, "another", 0, 32), Error);
  const JointSum sum = read_joint_sum(file, checkpoint_.hash(), 2, 32);
  EXPECT_EQ(sum.second_moment.size(), 32u * 32u);
  EXPECT_EQ(sum.num_tokens, 6);
  EXPECT_THROW(read_attention_metric(file, checkpoint_.hash(), 0, 2, 8), Error);
}

}  // namespace
}  // namespace kvc
