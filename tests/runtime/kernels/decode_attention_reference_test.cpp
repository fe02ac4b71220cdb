#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

// One block of rows each.
struct Block {
  Block(const void* keys, const void* values, std::int64_t rows,
        KvElement value_element = KvElement::kFloat32)
      : key(keys), value(values) {
    segment.key = {&key, rows, rows, KvElement::kFloat32};
    segment.value = {&value, rows, rows, value_element};
  }
  Block(const Block&) = delete;
  const void* key;
  const void* value;
  KvSegment segment;
};

// Two tokens, one head: scores 0 and ln 3, so the second value counts three times as much.
TEST(DecodeAttentionReference, WeighsValuesByTheSoftmaxOfScores) {
  const float query[] = {1, 0}, key[] = {0, 5, std::log(3.0f), 7}, value[] = {1, 2, 5, -2};
  const Block block(key, value, 2);
  float output[2];
  decode_attention_reference({.query = query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 2},
                             &block.segment, 1, output);
  EXPECT_NEAR(output[0], 4, 1e-6);
  EXPECT_NEAR(output[1], -1, 1e-6);
}

TEST(DecodeAttentionReference, JoinsSegments) {
  const float query[] = {1, 0}, key[] = {0, 5, std::log(3.0f), 7}, value[] = {1, 2, 5, -2};
  const Block first(key, value, 1), second(key + 2, value + 2, 1);
  const KvSegment segments[] = {second.segment, first.segment};
  float output[2];
  decode_attention_reference({.query = query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 2},
                             segments, 2, output);
  EXPECT_NEAR(output[0], 4, 1e-6);
  EXPECT_NEAR(output[1], -1, 1e-6);
}

TEST(DecodeAttentionReference, QueryHeadsShareAKvHeadInOrder) {
  const float query[] = {0, 0, 0, 0}, key[] = {1, 1}, value[] = {3, 8};
  const Block block(key, value, 1);
  float output[4];
  decode_attention_reference({.query = query, .num_heads = 4, .num_kv_heads = 2, .head_dim = 1},
                             &block.segment, 1, output);
  EXPECT_EQ((std::vector<float>(output, output + 4)), (std::vector<float>{3, 3, 8, 8}));
}

// Scores 0 and a large one that the cap leaves at ln 3.
TEST(DecodeAttentionReference, CapsScores) {
  const float query[] = {1}, key[] = {0, 1000}, value[] = {1, 5};
  const Block block(key, value, 2);
  float output = 0;
  decode_attention_reference(
      {.query = query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 1, .softcap = std::log(3.0f)},
      &block.segment, 1, &output);
  EXPECT_NEAR(output, 4, 1e-6);
}

TEST(DecodeAttentionReference, ReadsHalfPrecision) {
  const float query[] = {1}, key[] = {0, 0};
  const std::uint16_t half[] = {0x3C00, 0xC000}, brain[] = {0x3F80, 0xC000};  // 1 and -2
  const DecodeAttentionParams params{
      .query = query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  float output = 0;
  const Block halves(key, half, 2, KvElement::kFloat16);
  decode_attention_reference(params, &halves.segment, 1, &output);
  EXPECT_EQ(output, -0.5f);
  const Block brains(key, brain, 2, KvElement::kBFloat16);
  decode_attention_reference(params, &brains.segment, 1, &output);
  EXPECT_EQ(output, -0.5f);
}

// Angles of position p: p quarter turns. The key (1, 0) turns to (0, 1), (-1, 0), ...
struct QuarterTurns {
  float cos[4] = {1, 0, -1, 0};
  float sin[4] = {0, 1, 0, -1};
};

TEST(DecodeAttentionReference, TurnsRawKeysAtTheirPositions) {
  const QuarterTurns turns;
  const float query[] = {0, std::log(3.0f)}, key[] = {1, 0, 1, 0}, value[] = {1, 0, 5, 0};
  Block block(key, value, 2);
  block.segment.raw_key = true;
  block.segment.first_position = 2;  // keys (-1, 0) and (0, -1): scores 0 and -ln 3
  DecodeAttentionParams params{.query = query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  params.raw_keys.rope = {turns.cos, turns.sin, 1, false};
  float output[2];
  decode_attention_reference(params, &block.segment, 1, output);
  EXPECT_NEAR(output[0], 2, 1e-6);
  const std::int32_t positions[] = {0, 1};  // keys (1, 0) and (0, 1): scores 0 and ln 3
  block.segment.positions = positions;
  decode_attention_reference(params, &block.segment, 1, output);
  EXPECT_NEAR(output[0], 4, 1e-6);
}

// Four channels, two pairs, one quarter turn: halves pair (0, 2) and (1, 3), neighbours (0, 1), (2, 3).
TEST(DecodeAttentionReference, PairsHalvesOrNeighbours) {
  const float cos[] = {1, 1, 0, 0}, sin[] = {0, 0, 1, 1};
  const float query[] = {1, 10, 100, 1000}, key[] = {1, 2, 3, 4}, value[] = {0, 0, 0, 0};
  Block block(key, value, 1);
  block.segment.raw_key = true;
  block.segment.first_position = 1;
  DecodeAttentionParams params{.query = query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 4};
  params.raw_keys.rope = {cos, sin, 2, false};
  testing::Partial partial(1, 4);
  decode_attention_partial_reference(params, block.segment, 0, 1, partial.view());
  EXPECT_NEAR(partial.max[0], -3 - 40 + 100 + 2000, 1e-4);
  params.raw_keys.rope.interleaved = true;
  decode_attention_partial_reference(params, block.segment, 0, 1, partial.view());
  EXPECT_NEAR(partial.max[0], -2 + 10 - 400 + 3000, 1e-4);
}

// The key (3, 4) over its root mean square sqrt(12.5), times (1, 2), unturned.
TEST(DecodeAttentionReference, NormalisesRawKeys) {
  const float query[] = {1, 1}, key[] = {3, 4}, value[] = {0, 0}, norm[] = {1, 2};
  Block block(key, value, 1);
  block.segment.raw_key = true;
  DecodeAttentionParams params{.query = query, .num_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  params.raw_keys.norm = norm;
  testing::Partial partial(1, 2);
  decode_attention_partial_reference(params, block.segment, 0, 1, partial.view());
  EXPECT_NEAR(partial.max[0], 11 / std::sqrt(12.5), 1e-5);
}

}  // namespace
}  // namespace kvc
