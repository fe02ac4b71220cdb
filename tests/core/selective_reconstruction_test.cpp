// Settings of selective reconstruction and what it costs.
#include "core/selective_reconstruction.h"

#include "core/kv_plan_bytes.h"
#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

TEST(SelectiveReconstruction, SettingsRoundTrip) {
  EXPECT_EQ(to_string(parse_selective("")), "chunks=256,outliers=48,chunk=8");
  for (const char* text : {"chunks=all,outliers=0,chunk=4", "chunks=1,outliers=7,chunk=16"}) {
    EXPECT_EQ(to_string(parse_selective(text)), text);
  }
  for (const char* text :
       {"chunks=0", "chunks=", "chunks=1.5", "outliers=-1", "chunk=0", "chunk=all", "chunks",
        "tokens=4", ",chunks=2", "chunks=2,", "chunks=2,chunks=2"}) {
    EXPECT_THROW(parse_selective(text), UsageError) << text;
  }
  EXPECT_THAT(error_of([] { parse_selective("rank=3"); }), HasSubstr("chunks, outliers, chunk"));
}

// Chunks that were begun before, or have not ended, are none's outliers.
TEST(SelectiveReconstruction, OutliersComeOutOfWholeChunks) {
  const SelectiveReconstruction selective{.outlier_chunks = 3, .chunk_tokens = 4};
  EXPECT_EQ(selective.num_chunks(0), 0);
  EXPECT_EQ(selective.num_chunks(9), 3);
  EXPECT_EQ(selective.new_outliers(0, 0, 3), 0);
  EXPECT_EQ(selective.new_outliers(0, 0, 11), 2);
  EXPECT_EQ(selective.new_outliers(0, 0, 100), 3);
  EXPECT_EQ(selective.new_outliers(11, 2, 1), 0);
  EXPECT_EQ(selective.new_outliers(11, 2, 4), 0);
  EXPECT_EQ(selective.new_outliers(11, 2, 9), 1);
  EXPECT_EQ(selective.new_outliers(9, 1, 1), 0);
}

TEST(SelectiveReconstruction, CostsLandmarksAndExactChunks) {
  // Two layers of 2 KV heads of 4 channels: 8 numbers a landmark, 16 a token.
  KvPlan plan = plain_plan(2, 2, 4);
  plan.layers = {KvSource::kLatent, KvSource::kLatent};
  plan.groups = {{.num_layers = 2,
                  .split_kv = true,
                  .rank = 8,
                  .key_rank = 3,
                  .value_rank = 5,
                  .merge_weights = {},
                  .basis = LatentBasis::kCalibrated}};
  plan.compression.granularity = Granularity::kGroup;
  plan.check();
  const GroupTokens tokens{.merged = 21, .pending = 6, .outliers = 2};
  const auto bytes = [&](std::int64_t page_tokens) {
    return group_bytes(plan, 0, tokens, KvDtype::kBFloat16, page_tokens);
  };
  const std::int64_t single = bytes(1), paged = bytes(16);
  plan.selective = SelectiveReconstruction{.chunk_tokens = 4};
  EXPECT_EQ(bytes(1) - single, 2 * (6 * 8 * 2 + 2 * 4 * 16 * 2 + 2 * 2 * 4));
  EXPECT_EQ(bytes(16) - paged, 2 * (16 * 8 * 2 + 16 * 16 * 2 + 16 * 2 * 4));
  EXPECT_EQ(group_bytes(plan, 0, tokens, KvDtype::kInt8) -
                group_bytes(plan, 0, {.merged = 21, .pending = 6}, KvDtype::kInt8),
            2 * (2 * 4 * 16 * 2 + 2 * 2 * 4));
}

}  // namespace
}  // namespace kvc
