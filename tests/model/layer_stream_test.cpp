#include "model/layer_stream.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::tensors_close;
using testing::tensors_identical;

class LayerStreamTest : public ::testing::Test {
 protected:
  LayerStreamTest()
      : checkpoint_(written(directory_ / "m")),
        config_(parse_model_config(checkpoint_.config(), "config.json")) {
    tokens_.sequences = testing::random_ids(5, 7, config_.vocab_size, 1);
    tokens_.sequences[3].resize(3);
  }
  static Checkpoint written(const std::filesystem::path& directory) {
    testing::write_synthetic_checkpoint(directory, {.model_type = "qwen3"});
    return Checkpoint::open(directory);
  }
  LayerStream stream(std::int64_t memory_bytes = 1 << 20) const {
    return {
        checkpoint_,
        config_,
        tokens_,
        {.batch_tokens = 15, .memory_bytes = memory_bytes, .spill_directory = directory_.path()}};
  }

  testing::TemporaryDirectory directory_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  TokenSet tokens_;
};

TEST_F(LayerStreamTest, GroupsWholeSequencesIntoBatches) {
  const LayerStream stream = this->stream();
  ASSERT_EQ(stream.num_batches(), 3);  // 7 + 7, 7 + 3, 7
  EXPECT_EQ(stream.batch(1).lengths, (std::vector<std::int64_t>{7, 3}));
  EXPECT_EQ(stream.batch(1).ids[7].item<std::int64_t>(), tokens_.sequences[3][0]);
}

TEST_F(LayerStreamTest, EqualsTheDecoder) {
  const Decoder decoder(checkpoint_, at::kFloat);
  FullAttention attention(config_, decoder.rope());
  for (const std::int64_t memory_bytes : {std::int64_t{1} << 20, std::int64_t{0}}) {
    LayerStream stream = this->stream(memory_bytes);
    stream.advance(3, nullptr);
    stream.advance(1, nullptr);
    EXPECT_EQ(stream.next_layer(), 4);
    for (int index = 0; index < stream.num_batches(); ++index) {
      EXPECT_TRUE(tensors_close(stream.boundary(index),
                                decoder.forward(stream.batch(index), attention), 1e-4));
    }
  }
}

TEST_F(LayerStreamTest, ShowsEveryLayerOfABatchBeforeTheNextBatch) {
  LayerStream stream = this->stream();
  std::vector<std::pair<int, int>> visited;
  stream.advance(1, nullptr);
  stream.advance(
      2, [&](const LayerActivations& seen) { visited.emplace_back(seen.batch_index, seen.layer); });
  EXPECT_EQ(visited,
            (std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 1}, {2, 2}}));
}

TEST_F(LayerStreamTest, ShowsProjectionsOfTheNormedInput) {
  LayerStream stream = this->stream();
  stream.advance(1, nullptr);
  std::vector<at::Tensor> boundaries;
  for (int index = 0; index < stream.num_batches(); ++index) {
    boundaries.push_back(stream.boundary(index).clone());
  }
  stream.peek(1, [&](const LayerActivations& seen) {
    const at::Tensor normed =
        seen.weights.input_norm(boundaries[static_cast<std::size_t>(seen.batch_index)]);
    EXPECT_TRUE(tensors_identical(seen.hidden, normed));
    EXPECT_TRUE(tensors_close(seen.key.flatten(1), seen.weights.k_proj(normed), 1e-5));
    EXPECT_TRUE(tensors_close(seen.value.flatten(1), seen.weights.v_proj(normed), 1e-5));
    EXPECT_EQ(seen.query.size(1), config_.num_heads);
    EXPECT_EQ(seen.batch.ids.size(0), normed.size(0));
  });
}

TEST_F(LayerStreamTest, PeekLeavesTheBoundary) {
  LayerStream stream = this->stream();
  const at::Tensor before = stream.boundary(1).clone();
  int visits = 0;
  stream.peek(2, [&](const LayerActivations&) { ++visits; });
  EXPECT_EQ(visits, 2 * stream.num_batches());
  EXPECT_EQ(stream.next_layer(), 0);
  EXPECT_TRUE(tensors_identical(stream.boundary(1), before));
}

TEST_F(LayerStreamTest, SpillsWithoutLeavingFiles) {
  const auto num_files = [&] {
    return std::distance(std::filesystem::directory_iterator(directory_.path()), {});
  };
  const auto before = num_files();
  LayerStream stream = this->stream(0);
  EXPECT_EQ(num_files(), before);
  stream.advance(1, nullptr);
  EXPECT_EQ(num_files(), before);
}

TEST_F(LayerStreamTest, RefusesMoreLayersThanThereAre) {
  LayerStream stream = this->stream();
  EXPECT_THROW(stream.advance(5, nullptr), Error);
}

TEST_F(LayerStreamTest, RefusesASpillDirectoryThatDoesNotExist) {
  const LayerStreamOptions options{.memory_bytes = 0, .spill_directory = directory_ / "absent"};
  EXPECT_THROW(LayerStream(checkpoint_, config_, tokens_, options), Error);
}

}  // namespace
}  // namespace kvc
