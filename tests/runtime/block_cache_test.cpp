#include "runtime/block_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace kvc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockCache, ServesBlocksAgain) {
  BlockCache& cache = BlockCache::of_process();
  cache.release();
  const std::size_t before = cache.used_bytes();
  c10::DataPtr first = cache.allocate(8 * kMiB);
  void* const place = first.get();
  const c10::DataPtr small = cache.allocate(kMiB / 4 - 1);
  EXPECT_EQ(cache.used_bytes(), before + 8 * kMiB);
  first.clear();
  EXPECT_EQ(cache.kept_bytes(), 8 * kMiB);
  first = cache.allocate(8 * kMiB - kMiB / 2);  // nearly as large
  EXPECT_EQ(first.get(), place);
  EXPECT_EQ(cache.kept_bytes(), 0u);
  first.clear();
  cache.release();
  EXPECT_EQ(cache.kept_bytes(), 0u);
  EXPECT_EQ(cache.used_bytes(), before);
}

TEST(BlockCache, KeepsAQuarterMoreThanWasUsedAtOnce) {
  BlockCache& cache = BlockCache::of_process();
  cache.release();
  ASSERT_EQ(cache.used_bytes(), 0u);
  void* place = nullptr;
  {
    const c10::DataPtr first = cache.allocate(8 * kMiB);
    place = first.get();
  }
  {
    const c10::DataPtr second = cache.allocate(2 * kMiB);  // 10 beside the 8
    EXPECT_EQ(cache.kept_bytes(), 8 * kMiB);
  }
  const c10::DataPtr half = cache.allocate(4 * kMiB);  // too much for a new one
  EXPECT_EQ(half.get(), place);
  EXPECT_EQ(cache.used_bytes(), 8 * kMiB);
  EXPECT_EQ(cache.kept_bytes(), 2 * kMiB);
  const c10::DataPtr other =
      cache.allocate(3 * kMiB);  // 11 were used at once then, and 2 more may be kept
  EXPECT_EQ(cache.kept_bytes(), 2 * kMiB);
}

TEST(BlockCache, GivesUpWhatWasKeptLongestFirst) {
  BlockCache& cache = BlockCache::of_process();
  cache.release();
  ASSERT_EQ(cache.used_bytes(), 0u);
  {
    c10::DataPtr first = cache.allocate(5 * kMiB), second = cache.allocate(3 * kMiB);
    first.clear();
    second.clear();
  }
  const c10::DataPtr large = cache.allocate(6 * kMiB);  // beside 3 it is within 8 and a quarter
  EXPECT_EQ(cache.kept_bytes(), 3 * kMiB);
  cache.release();
}

TEST(BlockCache, HoldsTensors) {
  BlockCache& cache = BlockCache::of_process();
  cache.release();
  for (const std::int64_t numbers : {7, 1 << 18, 1 << 20}) {
    const at::Tensor ones = at::ones({numbers}, at::kFloat);
    EXPECT_EQ(ones.clone().sum().item<double>(), static_cast<double>(numbers));
    void* const raw = cache.raw_allocate(static_cast<std::size_t>(numbers) * 4);
    cache.raw_deallocate(raw);
  }
  EXPECT_GT(cache.kept_bytes(), 0u);
  cache.release();
}

}  // namespace
}  // namespace kvc
