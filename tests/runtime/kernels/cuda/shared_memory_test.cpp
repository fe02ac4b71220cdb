// Shared memory that kernels ask for when they are launched, of which ptxas knows nothing.
#include <gtest/gtest.h>

#include "runtime/kernels/cuda/attention_codes_keys.h"
#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/attention_ranks_kernel.h"
#include "runtime/kernels/cuda/attention_rebuild_kernel.h"
#include "runtime/kernels/cuda/few_rows_product_tiles.h"
#include "runtime/kernels/cuda/sample_tokens_kernel.h"

namespace kvc {
namespace {

using KeyCodes = TileCodes<&RankAttention::key_codes>;

constexpr int kLeast = 99 * 1024;  // of a block on sm_120; sm_80 has 163 KiB, sm_90 and sm_100 227

TEST(CudaSharedMemory, DenseAttentionFitsWithFourWarpsOnLargeDevicesAndWithOneAnywhere) {
  EXPECT_LE((DenseShared<128, 2, 1, false>::bytes(4, 0)), 163 * 1024);
  EXPECT_LE((DenseShared<128, 2, 1, true>::bytes(4, 64)), 163 * 1024);
  EXPECT_LE((DenseShared<256, 1, 1, false>::bytes(1, 0)), kLeast);
  EXPECT_LE((DenseShared<256, 1, 1, true>::bytes(1, 128)), kLeast);
  EXPECT_LE((DenseShared<128, 1, 2, false>::bytes(2, 0)), 163 * 1024);
  EXPECT_LE((DenseShared<128, 1, 2, false>::bytes(1, 0)), kLeast);
  EXPECT_LE((DenseShared<128, 1, 2, true>::bytes(1, 64)), kLeast);
}

TEST(CudaSharedMemory, KernelsInRankSpaceFitAnywhere) {
  EXPECT_LE((RebuildShared<8, LatentNumbers>::bytes(8)), kLeast);
  EXPECT_LE((RebuildShared<8, LatentCodes>::bytes(8)), kLeast);
  EXPECT_LE((RebuildShared<8, KeyCodes>::bytes(8)), kLeast);
  EXPECT_LE(4 * RankSumsShared<LatentNumbers>::kWarpBytes, kLeast);
  EXPECT_LE(4 * RankSumsShared<LatentCodes>::kWarpBytes, kLeast);
  EXPECT_LE(4 * RankSumsShared<KeyCodes>::kWarpBytes, kLeast);
}

TEST(CudaSharedMemory, KernelsOfAStepFitAnywhere) {
  EXPECT_LE((ProductTiles<true, 4>::shared_bytes(8)), kLeast);
  EXPECT_LE((ProductTiles<false, 4>::shared_bytes(8)), kLeast);
  EXPECT_LE(SampleShared::bytes(SampleTokensKernel::kThreads), kLeast);
}

// With 8 bits for every coefficient, gains, and means in all rotary pairs.
int coded_bytes(int head_dim, bool turned, int query_tiles, int warps) {
  const DeviceTiles values;
  CodedAttention params;
  params.values = &values;
  params.head_dim = params.codes.count = head_dim;
  params.means.count = params.num_angles = head_dim / 2;
  params.most_key_bytes = params.most_value_bytes = 32 * (head_dim + 1);
  params.turned = turned;
  return CodedShared(params, query_tiles).bytes(warps);
}

TEST(CudaSharedMemory, CodesThatMeetTheQueryFitWithFourWarpsOnLargeDevicesAndWithOneAnywhere) {
  for (const bool turned : {false, true}) {
    EXPECT_LE(coded_bytes(128, turned, 2, 4), 163 * 1024);
    EXPECT_LE(coded_bytes(128, turned, 2, 1), kLeast);
    EXPECT_LE(coded_bytes(256, turned, 1, 1), 163 * 1024);
  }
}

}  // namespace
}  // namespace kvc
