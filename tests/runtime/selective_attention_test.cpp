// Landmarks, outliers, the choice of chunks and attention over them, against loops over every token.
#include "runtime/attention/selective_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "runtime/attention/cache_segments.h"
#include "runtime/compression/chunk_landmarks.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::selective_attention_test {
namespace {

using testing::random_normal;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_close;

constexpr std::int64_t kTokens = 1500, kSinks = 2, kPending = 30;
constexpr std::int64_t kLatents = kTokens - kPending;

struct SelectiveCase {
  std::string name;
  SyntheticCheckpoint model;
  SelectiveReconstruction selective;
  bool joint = false;
  std::optional<KvElement> codes{};
};

// Two layers of a group whose latents came in three times.
class SelectiveAttention : public ::testing::TestWithParam<SelectiveCase> {
 protected:
  void SetUp() override {
    SyntheticCheckpoint model = GetParam().model;
    model.num_layers = 2;
    plan_ = testing::principal_plan(model, 2, LatentBasis::kCalibrated, GetParam().joint, 12, 20);
    plan_.compression.sink_tokens = kSinks;
    plan_.selective = GetParam().selective;
    testing::write_factored_checkpoint(directory_.path(), model, plan_);
    const Checkpoint checkpoint = Checkpoint::open(directory_.path());
    decoder_ = std::make_unique<Decoder>(checkpoint, at::kFloat);
    factors_ = load_latent_factors(checkpoint, plan_, model.hidden_size, at::kFloat);
    store_ = std::make_unique<LatentStore>(
        plan_, 0, StoreOptions{std::make_shared<KvPool>(32), at::kFloat, GetParam().codes});
    for (int layer = 0; layer < 2; ++layer) {
      const auto seed = static_cast<std::uint64_t>(10 * layer);
      const std::vector<std::int64_t> shape{kTokens, model.num_kv_heads, model.head_dim};
      keys_.push_back(random_normal(shape, seed) + random_normal({1, 1, model.head_dim}, 99));
      values_.push_back(random_normal(shape, seed + 1));
      store_->append_pending(layer, keys_.back(), values_.back());
    }
    for (const std::int64_t count : {std::int64_t{1203}, std::int64_t{2}, kLatents - 1205}) {
      const std::vector<NewChunks> chunks = chunks_of(*plan_.selective, *store_, kSinks, count);
      store_->decide(at::ones({count}, at::kBool), store_->next_positions(count),
                     random_normal({count, plan_.groups[0].rank}, 5));
      append_chunks(chunks, *store_);
    }
  }

  std::int64_t chunk_tokens() const { return plan_.selective->chunk_tokens; }
  std::int64_t num_heads() const { return plan_.num_kv_heads; }
  // A KV head's keys of one chunk. [tokens, head_dim]
  at::Tensor keys_of(int index, std::int64_t head, std::int64_t chunk) const {
    const std::int64_t first = chunk * chunk_tokens();
    return keys_[static_cast<std::size_t>(index)]
        .slice(0, kSinks + first, kSinks + std::min(kLatents, first + chunk_tokens()))
        .select(1, head);
  }
  std::vector<std::int64_t> outliers(int index, std::int64_t head) const {
    const at::Tensor own =
        store_->chunks(index).outlier_chunks.rows(at::kLong).select(1, head).contiguous();
    const auto* first = own.const_data_ptr<std::int64_t>();
    return {first, first + own.size(0)};
  }

  const TemporaryDirectory directory_;
  KvPlan plan_;
  std::unique_ptr<Decoder> decoder_;
  LatentFactors factors_;
  std::unique_ptr<LatentStore> store_;
  std::vector<at::Tensor> keys_, values_;
};

TEST_P(SelectiveAttention, LandmarksAreMeansOfTheirChunksKeys) {
  for (int index = 0; index < 2; ++index) {
    const at::Tensor landmarks = store_->chunks(index).landmarks.rows(at::kFloat);
    ASSERT_EQ(landmarks.size(0), plan_.selective->num_chunks(kLatents));
    for (std::int64_t chunk = 0; chunk < landmarks.size(0); ++chunk) {
      for (std::int64_t head = 0; head < num_heads(); ++head) {
        ASSERT_TRUE(
            tensors_close(landmarks[chunk][head], keys_of(index, head, chunk).mean(0), 1e-5))
            << "chunk " << chunk;
      }
    }
  }
}

// The first tokens are enough for all outliers.
TEST_P(SelectiveAttention, OutliersAreTheChunksLeastLikeTheirLandmarks) {
  const std::int64_t count = plan_.selective->outlier_chunks;
  for (int index = 0; index < 2; ++index) {
    const auto layer = static_cast<std::size_t>(index);
    for (std::int64_t head = 0; head < num_heads(); ++head) {
      std::vector<std::pair<float, std::int64_t>> cosines;
      for (std::int64_t chunk = 0; chunk < 1203 / chunk_tokens(); ++chunk) {
        const at::Tensor keys = keys_of(index, head, chunk);
        const at::Tensor landmark = keys.mean(0);
        const at::Tensor cosine = at::mv(keys, landmark) / keys.norm(2, 1) / landmark.norm();
        cosines.emplace_back(cosine.min().item<float>(), chunk);
      }
      std::sort(cosines.begin(), cosines.end());
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < count; ++i) {
        expected.push_back(cosines[static_cast<std::size_t>(i)].second);
      }
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(outliers(index, head), expected);
      const KeyValueStore& exact = store_->chunks(index).outliers;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t from = kSinks + expected[static_cast<std::size_t>(i)] * chunk_tokens();
        const auto same = [&](const RowStore& rows, const at::Tensor& all) {
          return at::equal(
              rows.rows(i * chunk_tokens(), chunk_tokens(), at::kFloat).select(1, head),
              all.narrow(0, from, chunk_tokens()).select(1, head));
        };
        EXPECT_TRUE(same(exact.key, keys_[layer]) && same(exact.value, values_[layer]));
      }
    }
  }
}

TEST_P(SelectiveAttention, ChunksAreChosenByTheLargestShare) {
  const ModelConfig& config = decoder_->config();
  const at::Tensor query = random_normal({config.num_heads, config.head_dim}, 7);
  const std::int64_t heads_per_kv = config.num_heads / num_heads();
  const ChunkLists lists = choose_chunks(*plan_.selective, store_->chunks(1), query,
                                         attention_rule(config, 1), kLatents);
  for (std::int64_t head = 0; head < num_heads(); ++head) {
    const std::vector<std::int64_t> exact = outliers(1, head);
    std::vector<std::pair<double, std::int64_t>> shares;
    for (std::int64_t chunk = 0; chunk < plan_.selective->num_chunks(kLatents); ++chunk) {
      if (!std::binary_search(exact.begin(), exact.end(), chunk)) {
        shares.emplace_back(0, chunk);
      }
    }
    for (std::int64_t i = head * heads_per_kv; i < (head + 1) * heads_per_kv; ++i) {
      std::vector<double> weights;
      double sum = 0;
      for (const auto& [share, chunk] : shares) {
        const at::Tensor landmark = keys_of(1, head, chunk).mean(0);
        weights.push_back(std::exp(at::dot(query[i], landmark).item<double>() /
                                   std::sqrt(static_cast<double>(config.head_dim))));
        sum += weights.back();
      }
      for (std::size_t j = 0; j < shares.size(); ++j) {
        shares[j].first = std::min(shares[j].first, -weights[j] / sum);
      }
    }
    std::sort(shares.begin(), shares.end());
    const std::int64_t chosen =
        std::min<std::int64_t>(plan_.selective->chunks, static_cast<std::int64_t>(shares.size()));
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < chosen; ++i) {
      expected.push_back(shares[static_cast<std::size_t>(i)].second);
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(lists[static_cast<std::size_t>(head)], expected);
  }
}

TEST_P(SelectiveAttention, IsThatOverChosenExactAndPendingTokens) {
  const ModelConfig& config = decoder_->config();
  const at::Tensor query = random_normal({1, config.num_heads, config.head_dim}, 7) * 2;
  const at::Tensor positions = at::full({1}, kTokens - 1, at::kLong);
  RebuildCounts counts;
  std::int64_t expected_count = 0;
  for (int index = 0; index < 2; ++index) {
    const GroupFactors& factors = factors_.groups[0];
    const Reconstruction& layer = factors.merged_layers[static_cast<std::size_t>(index)];
    const KeyValue rebuilt = reconstruct(*decoder_, decoder_->layer(index), factors, layer,
                                         store_->merged().rows(at::kFloat));
    const at::Tensor key = decoder_->rope().rotate(
        index, rebuilt.key, at::arange(kSinks, kSinks + kLatents, at::kLong));
    const ChunkLists lists = choose_chunks(*plan_.selective, store_->chunks(index), query[0],
                                           attention_rule(config, index), kLatents);
    std::vector<at::Tensor> outputs;
    for (std::int64_t head = 0; head < num_heads(); ++head) {
      std::vector<std::int64_t> rows;
      for (const std::int64_t chunk : lists[static_cast<std::size_t>(head)]) {
        for (std::int64_t row = chunk * chunk_tokens();
             row < std::min(kLatents, (chunk + 1) * chunk_tokens()); ++row) {
          rows.push_back(row);
        }
      }
      expected_count += static_cast<std::int64_t>(rows.size());
      const at::Tensor chosen = at::tensor(rows, at::kLong);
      const ChunkLayer& chunks = store_->chunks(index);
      const KeyValueStore& pending = store_->pending(index);
      const auto all = [&](const at::Tensor& latents, const RowStore& exact, const RowStore& last) {
        return at::cat(
                   {latents.index_select(0, chosen), exact.rows(at::kFloat), last.rows(at::kFloat)})
            .select(1, head);
      };
      const at::Tensor own = query[0].unflatten(0, {num_heads(), -1})[head];
      const at::Tensor scores = at::mm(own, all(key, chunks.outliers.key, pending.key).t()) /
                                std::sqrt(static_cast<double>(config.head_dim));
      outputs.push_back(
          at::mm(at::softmax(scores, 1), all(rebuilt.value, chunks.outliers.value, pending.value)));
    }
    const GroupLayer selects{.group = {*decoder_, plan_, 0, factors, *store_},
                             .index = index,
                             .selects = true,
                             .rebuilt = &counts};
    EXPECT_TRUE(tensors_close(attend_group(selects, query, positions)[0],
                              at::cat(outputs).flatten(), GetParam().codes ? 1e-3 : 1e-5));
  }
  EXPECT_EQ(counts.rebuilt, expected_count);
  EXPECT_EQ(counts.latents, 2 * num_heads() * kLatents);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, SelectiveAttention,
    ::testing::Values(
        SelectiveCase{"few", {.model_type = "llama"}, {.chunks = 20, .outlier_chunks = 5}},
        SelectiveCase{"short_chunks",
                      {.model_type = "qwen2"},
                      {.chunks = 31, .outlier_chunks = 9, .chunk_tokens = 3}},
        SelectiveCase{"no_outliers", {.model_type = "qwen3"}, {.chunks = 7, .outlier_chunks = 0}},
        SelectiveCase{"all_but_outliers",
                      {.model_type = "llama"},
                      {.chunks = SelectiveReconstruction::kAllChunks, .outlier_chunks = 4}},
        SelectiveCase{"joint", {.model_type = "llama"}, {.chunks = 20, .outlier_chunks = 5}, true},
        SelectiveCase{"codes",
                      {.model_type = "llama", .head_dim = 64},
                      {.chunks = 20, .outlier_chunks = 5},
                      false,
                      KvElement::kInt8}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace kvc::selective_attention_test
