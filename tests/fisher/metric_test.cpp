#include "fisher/metric.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/hdf5.h"
#include "core/statistics_file.h"
#include "fisher/backward.h"
#include "model/decoder.h"
#include "tests/testing/error_of.h"
#include "tests/testing/statistics.h"
#include "tests/testing/test_tensors.h"

namespace kvc::metric_test {
namespace {

using testing::equal_to;
using ::testing::HasSubstr;
using testing::random_ids;
using testing::read_dataset;
using testing::token_set;
using Sequences = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kSinks = 2;

// The definition: the whole sequence in one graph, in which the second half's queries meet leaves instead
// of the first half's keys and values.
class LeafAttention : public Attention {
 public:
  LeafAttention(const ModelConfig& config, const RopeTables& rope, std::int64_t num_cached)
      : config_(config), rope_(rope), num_cached_(num_cached) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const at::Tensor key = input.weights.k_norm.over_heads(input.key);
    const auto first = [&](const at::Tensor& x) { return x.narrow(0, 0, num_cached_); };
    const auto second = [&](const at::Tensor& x) {
      return x.narrow(0, num_cached_, x.size(0) - num_cached_);
    };
    keys.push_back(first(key).detach().clone().set_requires_grad(true));
    values.push_back(first(input.value).detach().clone().set_requires_grad(true));
    const at::Tensor query = rotate_tokens(rope_, layer, input.query, batch);
    const at::Tensor plain = causal_attention(query, rotate_tokens(rope_, layer, key, batch),
                                              input.value, attention_rule(config_, layer));
    const at::Tensor cached = causal_attention(
        query, rotate_tokens(rope_, layer, at::cat({keys.back(), second(key)}), batch),
        at::cat({values.back(), second(input.value)}), attention_rule(config_, layer));
    return at::cat({first(plain).detach(), second(cached)});
  }
  std::vector<at::Tensor> keys, values;  // [num_layers]

 private:
  const ModelConfig& config_;
  const RopeTables& rope_;
  std::int64_t num_cached_;
};

struct Reference {
  std::vector<at::Tensor> rows;  // per layer [num_counted, 2 * kv_dim] float64
};

// One sequence's gradients with the labels that the tool draws for it.
Reference autograd_reference(const Checkpoint& checkpoint, const std::vector<std::int64_t>& ids) {
  const Decoder decoder(checkpoint, at::kFloat);
  const TokenBatch batch = TokenBatch::of({ids});
  const std::int64_t num_cached = batch.ids.size(0) / 2, count = batch.ids.size(0) - num_cached;
  LeafAttention attention(decoder.config(), decoder.rope(), num_cached);
  at::Tensor x = embed(decoder.config(), decoder.weights().embed_tokens, batch.ids);
  for (int layer = 0; layer < decoder.config().num_layers; ++layer) {
    x = run_layer(decoder.config(), decoder.layer(layer), layer, x, batch, attention);
  }
  // FNV-1a over the ids, as the tool seeds every sequence's draw.
  std::uint64_t seed = 14695981039346656037u;
  for (const std::int64_t id : ids) {
    seed = (seed ^ static_cast<std::uint64_t>(id)) * 1099511628211u;
  }
  const at::Tensor scored = x.narrow(0, num_cached, count);
  const LossGradient loss =
      sampled_loss_gradient(decoder.config(), decoder.weights(), scored.detach(), seed);
  scored.backward(loss.hidden);
  Reference reference;
  for (std::size_t layer = 0; layer < attention.keys.size(); ++layer) {
    reference.rows.push_back(
        at::cat(
            {attention.keys[layer].grad().flatten(1), attention.values[layer].grad().flatten(1)}, 1)
            .narrow(0, kSinks, num_cached - kSinks)
            .to(at::kDouble));
  }
  return reference;
}

class MetricTest : public testing::StatisticsTest {
 protected:
  std::filesystem::path run(const Sequences& sequences, const std::string& name,
                            int layers_per_group = 1, std::uint64_t seed = 0) {
    metric(checkpoint_, token_set(sequences), {{layers_per_group, kSinks}, seed}, directory_ / name,
           false);
    return directory_ / name;
  }
};

TEST_P(MetricTest, EqualsAutogradWithCachedKeysAndValuesAsLeaves) {
  const Sequences sequences = {random_ids(1, 17, 96, 1).front(), random_ids(1, 12, 96, 2).front()};
  const Reference a = autograd_reference(checkpoint_, sequences[0]);
  const Reference b = autograd_reference(checkpoint_, sequences[1]);
  const auto single = run(sequences, "layers.h5");
  const auto grouped = run(sequences, "groups.h5", 3);
  for (int layer = 0; layer < 4; ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    const at::Tensor rows = at::cat({a.rows[i], b.rows[i]});
    EXPECT_TRUE(equal_to(read_dataset(single, fmt::format("/metric/{}/second_moment", layer)),
                         at::mm(rows.t(), rows), 1e-4))
        << "layer " << layer;
  }
  const at::Tensor stacked = at::cat({at::cat({a.rows[0], a.rows[1], a.rows[2]}, 1),
                                      at::cat({b.rows[0], b.rows[1], b.rows[2]}, 1)});
  EXPECT_TRUE(equal_to(read_dataset(grouped, "/metric/0/second_moment"),
                       at::mm(stacked.t(), stacked), 1e-4));
  const Hdf5Reader file(single);
  EXPECT_EQ(file.ints("/num_tokens", {1}).front(), 8 + 6 - 2 * kSinks);
  EXPECT_EQ(file.ints("/num_scored", {1}).front(), 9 + 6);
}

TEST_P(MetricTest, RunsAddUpInAnyOrder) {
  const Sequences all = random_ids(4, 14, 96, 4);
  const auto whole = run(all, "all.h5", 2);
  const auto a = run({all[3], all[0]}, "a.h5", 2);
  const auto b = run({all[1], all[2]}, "b.h5", 2);
  const auto sum = directory_ / "sum.h5";
  add_metrics({b, a}, sum, false);
  for (const char* path : {"/metric/0/second_moment", "/metric/2/second_moment", "/loss_sum"}) {
    EXPECT_TRUE(equal_to(read_dataset(sum, path), read_dataset(whole, path), 1e-12)) << path;
  }
  EXPECT_EQ(Hdf5Reader(sum).ints("/num_tokens", {1}), Hdf5Reader(whole).ints("/num_tokens", {1}));
}

INSTANTIATE_TEST_SUITE_P(Architectures, MetricTest, ::testing::Values("llama", "qwen2", "qwen3"));

class MetricFileTest : public MetricTest {};
INSTANTIATE_TEST_SUITE_P(Llama, MetricFileTest, ::testing::Values("llama"));

TEST_P(MetricFileTest, TheSeedDrawsTheLabels) {
  const Sequences sequences = random_ids(2, 14, 96, 4);
  const at::Tensor first = read_dataset(run(sequences, "0.h5"), "/metric/1/second_moment");
  EXPECT_FALSE(
      equal_to(read_dataset(run(sequences, "1.h5", 1, 7), "/metric/1/second_moment"), first, 1e-3));
}

TEST_P(MetricFileTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of([&] {
                run({{1, 2, 3, 4}}, "short.h5");
              }),
              HasSubstr("sequence of 4 tokens"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "short.h5"));
  const auto one = run(random_ids(1, 14, 96, 1), "one.h5");
  const auto two = run(random_ids(1, 14, 96, 2), "two.h5", 2);
  EXPECT_THAT(error_of([&] {
                add_metrics({one, two}, directory_ / "sum.h5", false);
              }),
              HasSubstr("joint_layers"));
  EXPECT_THROW(read_gradient_metric(one, "another", 0, 32), Error);
  EXPECT_THROW(read_gradient_metric(one, checkpoint_.hash(), 0, 64), Error);
  EXPECT_EQ(read_gradient_metric(one, checkpoint_.hash(), 3, 32).values.size(), 32u * 32u);
}

}  // namespace
}  // namespace kvc::metric_test
