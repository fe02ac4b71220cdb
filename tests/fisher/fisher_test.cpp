#include "fisher/fisher.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/hdf5.h"
#include "fisher/backward.h"
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

struct Reference {
  at::Tensor channel_sum;  // [num_layers, 2, kv_dim]
  at::Tensor rms_sum;      // [num_layers, 2]
  double loss_sum = 0;
};

// The definition: autograd through the whole model in one graph, the weights themselves as leaves, one
// sequence at a time. Logits are scored `shift` tokens ahead.
Reference autograd_reference(const Checkpoint& checkpoint, const Sequences& sequences, int shift) {
  const ModelConfig config = parse_model_config(checkpoint.config(), "config.json");
  const RopeTables rope(config, at::kFloat);
  const ModelWeights model = load_model_weights(checkpoint, config, at::kFloat);
  FullAttention attention(config, rope);
  std::vector<LayerWeights> layers;
  std::vector<at::Tensor> squares;  // [2, kv_dim, hidden_size] per layer
  for (int layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back(load_layer(checkpoint, config, layer, at::kFloat));
    layers.back().k_proj.weight.set_requires_grad(true);
    layers.back().v_proj.weight.set_requires_grad(true);
    squares.push_back(at::zeros({2, config.kv_dim(), config.hidden_size}, at::kDouble));
  }
  Reference reference;
  for (const auto& sequence : sequences) {
    const TokenBatch batch = TokenBatch::of({sequence});
    at::Tensor x = embed(config, model.embed_tokens, batch.ids);
    for (int layer = 0; layer < config.num_layers; ++layer) {
      x = run_layer(config, layers[static_cast<std::size_t>(layer)], layer, x, batch, attention);
    }
    const std::int64_t count = batch.ids.size(0) - shift;
    const at::Tensor log_p = at::log_softmax(compute_logits(config, model, x), -1);
    const at::Tensor targets = batch.ids.narrow(0, shift, count).unsqueeze(1);
    const at::Tensor loss = -log_p.narrow(0, 0, count).gather(1, targets).mean();
    loss.backward();
    reference.loss_sum += loss.item<double>();
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      at::Tensor &k = layers[layer].k_proj.weight, &v = layers[layer].v_proj.weight;
      squares[layer] += at::stack({k.grad(), v.grad()}).to(at::kDouble).square();
      k.mutable_grad().reset();
      v.mutable_grad().reset();
    }
  }
  const at::Tensor all = at::stack(squares);
  reference.channel_sum = all.sum(-1);
  reference.rms_sum = (all / static_cast<double>(sequences.size())).sqrt().sum({-2, -1});
  return reference;
}

class FisherTest : public testing::StatisticsTest {
 protected:
  std::filesystem::path run(const Sequences& sequences, const std::string& name) {
    fisher(checkpoint_, token_set(sequences), directory_ / name, false);
    return directory_ / name;
  }
};

TEST_P(FisherTest, ScoresInBFloat16AreCloseToThoseInFloat32) {
  const Sequences sequences = random_ids(8, 32, 96, 5);
  const ComputePlace place{at::kCPU, at::kBFloat16};
  fisher(checkpoint_, token_set(sequences), directory_ / "narrow.h5", false, place);
  const at::Tensor wide = read_dataset(run(sequences, "wide.h5"), "/channel_sum").sum(-1);
  const at::Tensor narrow = read_dataset(directory_ / "narrow.h5", "/channel_sum").sum(-1);
  EXPECT_TRUE(at::allclose(narrow, wide, /*rtol=*/0.05, /*atol=*/0)) << narrow << wide;
  EXPECT_FALSE(at::equal(narrow, wide));
}

TEST_P(FisherTest, EqualsPerSequenceAutogradThroughTheWholeModel) {
  const Sequences sequences = {random_ids(1, 13, 96, 1).front(), random_ids(1, 6, 96, 2).front(),
                               random_ids(1, 9, 96, 3).front()};
  const auto file = run(sequences, "f.h5");
  const Reference expected = autograd_reference(checkpoint_, sequences, 1);
  const at::Tensor actual = read_dataset(file, "/channel_sum");
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    for (std::int64_t which : {0, 1}) {
      EXPECT_TRUE(equal_to(actual[layer][which], expected.channel_sum[layer][which], 1e-4))
          << "layer " << layer << (which == 0 ? " key" : " value");
    }
  }
  EXPECT_TRUE(equal_to(read_dataset(file, "/rms_sum"), expected.rms_sum, 1e-4));
  EXPECT_NEAR(read_dataset(file, "/loss_sum").item<double>(), expected.loss_sum, 1e-4);
  const Hdf5Reader reader(file);
  EXPECT_EQ(reader.ints("/num_sequences", {1}).front(), 3);
  EXPECT_EQ(reader.ints("/num_tokens", {1}).front(), 25);
}

// A second shift of the labels, as published code has it, is another quantity.
TEST_P(FisherTest, ShiftingLabelsTwiceIsSomethingElse) {
  const Sequences sequences = random_ids(2, 13, 96, 1);
  const auto file = run(sequences, "f.h5");
  const Reference twice = autograd_reference(checkpoint_, sequences, 2);
  EXPECT_FALSE(equal_to(read_dataset(file, "/channel_sum"), twice.channel_sum, 1e-2));
}

TEST_P(FisherTest, HalvesAddUpToOneRun) {
  const Sequences all = random_ids(5, 7, 96, 4);
  const auto whole = run(all, "all.h5");
  const auto a = run({all.begin(), all.begin() + 2}, "a.h5");
  const auto b = run({all.begin() + 2, all.end()}, "b.h5");
  const auto sum = directory_ / "sum.h5";
  add_fishers({a, b}, sum, false);
  EXPECT_TRUE(
      equal_to(read_dataset(sum, "/channel_sum"), read_dataset(whole, "/channel_sum"), 1e-12));
  EXPECT_TRUE(equal_to(read_dataset(sum, "/loss_sum"), read_dataset(whole, "/loss_sum"), 1e-12));
  const Hdf5Reader reader(sum);
  EXPECT_EQ(reader.ints("/num_sequences", {1}).front(), 5);
  EXPECT_EQ(reader.ints("/num_tokens", {1}).front(), 30);
  EXPECT_FALSE(reader.contains("/rms_sum"));
  const FisherInformation means = read_fisher(sum, checkpoint_.hash(), 4, 16);
  const at::Tensor expected = read_dataset(whole, "/channel_sum") / 5;
  EXPECT_TRUE(
      equal_to(at::tensor(means.channel, at::kDouble).reshape({4, 2, 16}), expected, 1e-12));
  EXPECT_TRUE(equal_to(at::tensor(means.score, at::kDouble), expected.sum({1, 2}), 1e-12));
}

INSTANTIATE_TEST_SUITE_P(Architectures, FisherTest, ::testing::Values("llama", "qwen2", "qwen3"));

class FisherFileTest : public FisherTest {};
INSTANTIATE_TEST_SUITE_P(Llama, FisherFileTest, ::testing::Values("llama"));

TEST_P(FisherFileTest, RefusesWhatItCannotScore) {
  EXPECT_THAT(error_of([&] { run({{1, 2, 3}, {4}}, "f.h5"); }), HasSubstr("sequence of 1 tokens"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "f.h5"));
}

TEST_P(FisherFileTest, LeavesOnlyItsOutputBesideIt) {
  run({{1, 2, 3}}, "f.h5");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("f.h5", "model"));
}

TEST_P(FisherFileTest, StagesReadTheInformationOfTheirCheckpointOnly) {
  const auto file = run({{1, 2, 3}}, "f.h5");
  EXPECT_TRUE(artifact_matches(file, fisher_provenance(checkpoint_, token_set({{1, 2, 3}}))));
  EXPECT_FALSE(artifact_matches(file, fisher_provenance(checkpoint_, token_set({{1, 2, 4}}))));
  EXPECT_THROW(read_fisher(file, "another", 4, 16), Error);
}

// Logits are scored in pieces when the vocabulary is large; the pieces make one mean.
TEST(LossGradient, PiecesOfALargeVocabularyAddUp) {
  ModelConfig config;
  config.vocab_size = std::int64_t{1} << 20;  // four rows at a time
  config.hidden_size = 2;
  ModelWeights weights;
  weights.norm = {.weight = at::ones({2}), .bias = {}, .eps = config.norm_eps};
  weights.lm_head.weight = at::zeros({config.vocab_size, 2});
  weights.lm_head.weight[7][0] = 1;  // only token 7 has a logit that depends on the state
  const at::Tensor ids = at::full({7}, 7, at::kLong);
  const at::Tensor hidden = testing::random_normal({7, 2}, 1);
  const LossGradient gradient = loss_gradient(config, weights, hidden, ids);
  const at::Tensor logit = weights.norm(hidden).select(1, 0);
  const at::Tensor others = at::full({7}, static_cast<double>(config.vocab_size - 1));
  const at::Tensor nll = (logit.exp() + others).log() - logit;
  EXPECT_NEAR(gradient.loss, nll.narrow(0, 0, 6).mean().item<double>(), 1e-3);
  EXPECT_EQ(gradient.hidden[6].abs().sum().item<double>(), 0);  // nothing follows the last token
  EXPECT_GT(gradient.hidden[5].abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace kvc
