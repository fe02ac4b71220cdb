// When latents are attended to in one launch, and in which shape.
#include <gtest/gtest.h>

#include <string>

#include "runtime/kernels/cuda/attention_one_pass.h"

namespace kvc {
namespace {

constexpr int kMultiprocessors = 132, kShared = 227 * 1024;  // of an H100

// Llama-3.1-8B's heads over latents of these ranks.
RankAttention attention_of(int key_rank, int value_rank, int num_sequences, int num_tokens) {
  RankAttention params;
  params.latents.width = key_rank + value_rank;
  params.latents.block_rows = 64;
  params.key_rank = params.value_column = key_rank;
  params.value_rank = value_rank;
  params.keys.pairs.num_pairs = 64;
  params.keys.rank_stride = (key_rank + 31) / 32 * 32;
  params.sums_width = (value_rank + 31) / 32 * 32;
  params.num_sequences = num_sequences;
  params.num_heads = 32;
  params.num_kv_heads = 8;
  params.head_dim = 128;
  params.max_tiles = num_tokens / 32;
  return params;
}

OnePassShape shape_of(const RankAttention& params, int shared = kShared) {
  return one_pass_shape(params, kMultiprocessors, shared);
}

TEST(OnePassShape, HoldsAsManyTokensAndHeadsAsSharedMemoryAndRegistersAllow) {
  const OnePassShape large = shape_of(attention_of(384, 576, 16, 8192));
  EXPECT_EQ(large.query_tiles, 2);
  EXPECT_EQ(large.heads_at_once, 2);  // 128 tokens: 256 do not fit
  const OnePassShape small = shape_of(attention_of(192, 288, 16, 8192));
  EXPECT_EQ(small.query_tiles, 2);
  EXPECT_EQ(small.heads_at_once, 1);
  EXPECT_EQ(shape_of(attention_of(192, 288, 16, 8192), 163 * 1024).heads_at_once, 2);
}

TEST(OnePassShape, HasBlocksForAllMultiprocessorsOrAsManyAsThereCanBe) {
  RankAttention one = attention_of(192, 288, 1, 8192);
  one.one_pass = shape_of(one);
  EXPECT_EQ(one.one_pass.heads_at_once, 2);  // 128 blocks with work, not 64
  EXPECT_EQ(one_pass_parts(one, kMultiprocessors), 64);
  RankAttention few = attention_of(192, 288, 1, 1024);
  few.one_pass = shape_of(few);
  EXPECT_EQ(few.one_pass.heads_at_once, 4);
  EXPECT_EQ(one_pass_parts(few, kMultiprocessors), 16);  // a group of tokens each
}

TEST(OnePassShape, PartsFillMultiprocessorsOnceOrOften) {
  RankAttention params = attention_of(384, 576, 16, 32768);
  params.one_pass = shape_of(params);
  EXPECT_EQ(one_pass_parts(params, kMultiprocessors), 4);  // 128 blocks
  params.num_sequences = 50;
  EXPECT_EQ(one_pass_parts(params, kMultiprocessors), 6);  // 600
}

TEST(OnePassShape, TwoLaunchesTakeWhatDoesNotFitOrReadsMore) {
  EXPECT_EQ(shape_of(attention_of(704, 576, 16, 8192)).query_tiles, 0);  // shared memory
  EXPECT_EQ(shape_of(attention_of(384, 576, 16, 8192), 163 * 1024).query_tiles, 0);
  EXPECT_EQ(shape_of(attention_of(64, 64, 16, 8192), 99 * 1024).query_tiles, 0);
  EXPECT_EQ(shape_of(attention_of(384, 648, 16, 8192)).query_tiles, 0);  // registers
  RankAttention params = attention_of(384, 576, 16, 8192);
  params.stored.pairs.num_pairs = 8;
  EXPECT_EQ(shape_of(params).query_tiles, 0);
  params.stored.pairs.num_pairs = 0;
  params.keys.pairs.num_pairs = 24;
  EXPECT_EQ(shape_of(params).query_tiles, 0);
  params.keys.pairs.num_pairs = 64;
  params.latents.element = DeviceElement::kInt8;
  EXPECT_EQ(shape_of(params).query_tiles, 0);
  params.latents.element = DeviceElement::kBFloat16;
  params.num_heads = 8 * 17;
  EXPECT_EQ(shape_of(params).query_tiles, 0);
  params.num_heads = 8 * 8;  // four blocks read all latents
  EXPECT_EQ(shape_of(params).query_tiles, 0);
  params.num_heads = 32;
  EXPECT_GT(shape_of(params).query_tiles, 0);
}

TEST(OnePassShape, LaunchIsRefusedInAnyOtherShape) {
  RankAttention params = attention_of(384, 576, 16, 8192);
  params.one_pass = shape_of(params);
  EXPECT_EQ(check_one_pass_attention(params, kShared), "");
  EXPECT_NE(check_one_pass_attention(params, 163 * 1024).find("shared memory"), std::string::npos);
  params.one_pass.query_tiles = 4;  // of 64 rotary pairs
  EXPECT_NE(check_one_pass_attention(params, kShared).find("32 query heads"), std::string::npos);
  params.one_pass = {2, 3};
  EXPECT_NE(check_one_pass_attention(params, kShared).find("3 KV heads"), std::string::npos);
  params.one_pass = {2, 1};
  params.value_rank = 648;
  params.latents.width = 384 + 648;
  params.sums_width = 672;
  EXPECT_NE(check_one_pass_attention(params, kShared).find("up to 640"), std::string::npos);
}

}  // namespace
}  // namespace kvc
