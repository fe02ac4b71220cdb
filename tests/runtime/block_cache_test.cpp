#include "runtime/block_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace kvc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockCache, ServesBlocksAgainWithinWhatWasUsedAtOnce) {
  BlockCache& cache = BlockCache::of_process();
  cache.release();
  const std::size_t before = cache.used_bytes();
  {
    c10::DataPtr first = cache.allocate(8 * kMiB);
    void* const place = first.get();
    c10::DataPtr small = cache.allocate(kMiB - 1);
    EXPECT_EQ(cache.used_bytes(), before + 8 * kMiB);
    first.clear();
    EXPECT_EQ(cache.kept_bytes(), 8 * kMiB);
    first = cache.allocate(8 * kMiB - kMiB / 2);  // nearly as large
    EXPECT_EQ(first.get(), place);
    EXPECT_EQ(cache.kept_bytes(), 0u);
  }
  {
    const c10::DataPtr half = cache.allocate(4 * kMiB);  // with 8 kept, more than was ever used
    EXPECT_EQ(cache.kept_bytes(), 0u);
    EXPECT_EQ(cache.used_bytes(), before + 4 * kMiB);
  }
  const c10::DataPtr other = cache.allocate(3 * kMiB);  // 4 were kept: 7 of 8 that were used
  EXPECT_EQ(cache.kept_bytes(), 4 * kMiB);
  cache.release();
  EXPECT_EQ(cache.kept_bytes(), 0u);
  EXPECT_EQ(cache.used_bytes(), before + 3 * kMiB);
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
