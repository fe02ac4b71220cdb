// Shared memory that attention kernels ask for when they are launched, of which ptxas knows nothing.
#include <gtest/gtest.h>

#include "runtime/kernels/cuda/attention_dense_kernel.h"
#include "runtime/kernels/cuda/attention_ranks_kernel.h"
#include "runtime/kernels/cuda/attention_rebuild_kernel.h"

namespace kvc {
namespace {

constexpr int kLeast = 99 * 1024;  // of a block on sm_120; sm_80 has 163 KiB, sm_90 and sm_100 227

TEST(CudaSharedMemory, DenseAttentionFitsWithFourWarpsOnLargeDevicesAndWithOneAnywhere) {
  EXPECT_LE((DenseShared<128, 1, false>::bytes(4, 2)), 163 * 1024);
  EXPECT_LE((DenseShared<128, 1, true>::bytes(4, 2)), 163 * 1024);
  EXPECT_LE((DenseShared<256, 1, false>::bytes(1, 1)), kLeast);
  EXPECT_LE((DenseShared<256, 1, true>::bytes(1, 1)), kLeast);
  EXPECT_LE((DenseShared<128, 2, false>::bytes(2, 1)), 163 * 1024);
  EXPECT_LE((DenseShared<128, 2, false>::bytes(1, 1)), kLeast);
  EXPECT_LE((DenseShared<128, 2, true>::bytes(1, 1)), kLeast);
}

TEST(CudaSharedMemory, KernelsInRankSpaceFitAnywhere) {
  EXPECT_LE((RebuildShared<8, LatentNumbers>::bytes(8)), kLeast);
  EXPECT_LE((RebuildShared<8, LatentCodes>::bytes(8)), kLeast);
  EXPECT_LE((RebuildShared<8, TileCodes>::bytes(8)), kLeast);
  EXPECT_LE(4 * RankSumsShared<LatentNumbers>::kWarpBytes, kLeast);
  EXPECT_LE(4 * RankSumsShared<LatentCodes>::kWarpBytes, kLeast);
  EXPECT_LE(4 * RankSumsShared<TileCodes>::kWarpBytes, kLeast);
}

}  // namespace
}  // namespace kvc
