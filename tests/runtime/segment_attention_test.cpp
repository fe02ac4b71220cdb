#include "runtime/attention/segment_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/attention/prompt_attention.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::segment_attention_test {
namespace {

using testing::random_normal;
using testing::tensors_close;

constexpr std::int64_t kHeads = 6, kKvHeads = 2, kHeadDim = 8, kRank = 5;

Segment plain_segment(const at::Tensor& positions, std::uint64_t seed) {
  Segment segment;
  segment.key = random_normal({positions.size(0), kKvHeads, kHeadDim}, seed);
  segment.value = random_normal({positions.size(0), kKvHeads, kHeadDim}, seed + 1);
  segment.positions = positions;
  return segment;
}

Segment latent_segment(const at::Tensor& positions, std::uint64_t seed) {
  Segment segment;
  segment.key = random_normal({positions.size(0), kKvHeads, kHeadDim}, seed);
  segment.latent = random_normal({positions.size(0), kRank}, seed + 1);
  segment.value_proj = random_normal({kKvHeads * kHeadDim, kRank}, seed + 2);
  segment.value_bias = random_normal({kKvHeads * kHeadDim}, seed + 3);
  segment.positions = positions;
  return segment;
}

at::Tensor values_of(const Segment& segment) {
  return segment.value.defined()
             ? segment.value
             : at::linear(segment.latent, segment.value_proj, segment.value_bias)
                   .view_as(segment.key);
}

// Query by query, over the tokens it sees.
at::Tensor brute_force(const at::Tensor& query, const at::Tensor& positions,
                       const std::vector<Segment>& segments, const AttentionRule& rule) {
  std::vector<at::Tensor> keys, values, key_positions, outputs;
  for (const Segment& segment : segments) {
    keys.push_back(segment.key);
    values.push_back(values_of(segment));
    key_positions.push_back(segment.positions);
  }
  const at::Tensor key = at::cat(keys), value = at::cat(values),
                   at_position = at::cat(key_positions);
  for (std::int64_t i = 0; i < query.size(0); ++i) {
    const auto position = positions[i].item<std::int64_t>();
    at::Tensor seen = at_position <= position;
    if (rule.window) {
      seen = seen & (at_position > position - *rule.window);
    }
    const at::Tensor rows = seen.nonzero().squeeze(1);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t kv_head = head / (kHeads / kKvHeads);
      at::Tensor scores = at::mv(key.index_select(0, rows).select(1, kv_head), query[i][head]) *
                          rule.scale.value_or(1 / std::sqrt(8.0));
      if (rule.softcap != 0) {
        scores = at::tanh(scores / rule.softcap) * rule.softcap;
      }
      outputs.push_back(
          at::mv(value.index_select(0, rows).select(1, kv_head).t(), at::softmax(scores, 0)));
    }
  }
  return at::stack(outputs).view({query.size(0), kHeads * kHeadDim});
}

at::Tensor range(std::int64_t first, std::int64_t last) {
  return at::arange(first, last, at::kLong);
}

TEST(SegmentAttention, IsOneSoftmaxOverAllSegments) {
  const std::vector<Segment> segments = {latent_segment(at::tensor({3, 4, 9, 10}, at::kLong), 10),
                                         plain_segment(at::tensor({5, 6, 7, 8}, at::kLong), 20),
                                         plain_segment(at::cat({range(0, 3), range(11, 20)}), 30)};
  const at::Tensor query = random_normal({5, kHeads, kHeadDim}, 1);
  for (const AttentionRule& rule :
       {AttentionRule{}, AttentionRule{.window = 7}, AttentionRule{.window = 1},
        AttentionRule{.window = 9, .scale = 0.9, .softcap = 0.8}}) {
    const at::Tensor expected = brute_force(query, range(15, 20), segments, rule);
    EXPECT_TRUE(
        tensors_close(attend_segments(query, range(15, 20), segments, rule), expected, 1e-5));
    const std::vector<Segment> reversed(segments.rbegin(), segments.rend());
    EXPECT_TRUE(
        tensors_close(attend_segments(query, range(15, 20), reversed, rule), expected, 1e-5));
  }
}

// All tokens of a text, also in another order; texts that lack a token, that continue behind the queries, that have latents.
TEST(SegmentAttention, ThatOfATextIsTheSame) {
  const Segment codes = plain_segment(range(2, 60), 10),
                ends = plain_segment(at::cat({range(0, 2), range(60, 90)}), 20),
                gap = plain_segment(at::cat({range(0, 1), range(60, 90)}), 20),
                latents = latent_segment(range(2, 60), 10),
                longer = plain_segment(range(90, 93), 30);
  const std::vector<std::vector<Segment>> all = {{plain_segment(range(0, 90), 40)},
                                                 {codes, ends},
                                                 {ends, codes},
                                                 {codes, gap},
                                                 {codes, ends, longer},
                                                 {latents, ends}};
  for (const std::int64_t queries : {2, 70}) {
    const at::Tensor query = random_normal({queries, kHeads, kHeadDim}, 1);
    const at::Tensor positions = range(90 - queries, 90);
    for (const std::vector<Segment>& segments : all) {
      for (const AttentionRule& rule :
           {AttentionRule{}, AttentionRule{.window = 7}, AttentionRule{.window = 1, .scale = 0.9},
            AttentionRule{.window = 9, .scale = 0.9, .softcap = 0.8}}) {
        EXPECT_TRUE(tensors_close(attend_text(query, positions, segments, rule),
                                  brute_force(query, positions, segments, rule), 1e-5));
      }
    }
  }
}

TEST(SegmentAttention, OneQuerySeesEverything) {
  const std::vector<Segment> segments = {latent_segment(range(0, 40), 10),
                                         plain_segment(range(40, 50), 20)};
  const at::Tensor query = random_normal({1, kHeads, kHeadDim}, 1);
  EXPECT_TRUE(tensors_close(attend_segments(query, range(49, 50), segments, {}),
                            brute_force(query, range(49, 50), segments, {}), 1e-5));
}

// 2^24 scores are a chunk: 3000 queries of 6 heads over 3000 tokens take four.
TEST(SegmentAttention, ChunksOfQueriesDoNotChangeTheResult) {
  const std::vector<Segment> segments = {plain_segment(range(0, 3000), 20)};
  const at::Tensor query = random_normal({3000, kHeads, kHeadDim}, 1);
  const at::Tensor all = attend_segments(query, range(0, 3000), segments, {});
  for (const std::int64_t row : {0, 931, 932, 2999}) {
    EXPECT_TRUE(tensors_close(all.narrow(0, row, 1),
                              attend_segments(query.narrow(0, row, 1), range(row, row + 1),
                                              {{.key = segments[0].key.narrow(0, 0, row + 1),
                                                .positions = range(0, row + 1),
                                                .value = segments[0].value.narrow(0, 0, row + 1),
                                                .latent = {},
                                                .value_proj = {},
                                                .value_bias = {}}},
                                              {}),
                              1e-5));
  }
}

TEST(SegmentAttention, RankSpacePaysForFewQueries) {
  // An 8B at rank 2867: worth it up to 33 queries.
  EXPECT_TRUE(prefers_rank_space(33, 32, 128, 1024, 2867));
  EXPECT_FALSE(prefers_rank_space(34, 32, 128, 1024, 2867));
  EXPECT_TRUE(prefers_rank_space(1000, 8, 32, 64, 32));
}

}  // namespace
}  // namespace kvc::segment_attention_test
