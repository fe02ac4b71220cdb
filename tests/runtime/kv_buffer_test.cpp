#include "runtime/kv_buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "core/error.h"

namespace kvc {
namespace {

// Memory of this process that is really in use.
std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

at::Tensor numbered_rows(std::int64_t first, std::int64_t count, std::int64_t width) {
  return at::arange(first, first + count, at::kFloat).unsqueeze(1).expand({count, width});
}

TEST(KvBuffer, GrowsByPagesAndKeepsRows) {
  auto allocator = std::make_shared<KvAllocator>(16);
  KvBuffer buffer(allocator, {2, 3}, at::kFloat, 1000);
  EXPECT_EQ(buffer.committed_bytes(), 0);
  const at::Tensor rows = at::arange(17 * 6, at::kFloat).view({17, 2, 3});
  buffer.append(rows.narrow(0, 0, 1));
  EXPECT_EQ(allocator->allocated_bytes(), 16 * 24);
  buffer.append(rows.narrow(0, 1, 16));
  EXPECT_EQ(allocator->allocated_bytes(), 32 * 24);
  EXPECT_TRUE(at::equal(buffer.rows(), rows));
}

TEST(KvBuffer, EraseMovesLaterRowsDownAndFreesPages) {
  auto allocator = std::make_shared<KvAllocator>(4);
  KvBuffer buffer(allocator, {5}, at::kFloat, 100);
  buffer.append(numbered_rows(0, 12, 5));
  buffer.erase(2, 7);
  EXPECT_TRUE(at::equal(buffer.rows(), at::cat({numbered_rows(0, 2, 5), numbered_rows(9, 3, 5)})));
  EXPECT_EQ(buffer.committed_bytes(), 8 * 20);
  buffer.append(numbered_rows(12, 1, 5));
  EXPECT_EQ(buffer.rows()[5][0].item<float>(), 12);
  EXPECT_EQ(allocator->peak_bytes(), 12 * 20);
  EXPECT_THROW(buffer.erase(5, 2), Error);
}

TEST(KvBuffer, CastsToItsType) {
  auto allocator = std::make_shared<KvAllocator>(1);
  KvBuffer buffer(allocator, {4}, at::kBFloat16, 10);
  const at::Tensor rows = at::rand({3, 4});
  buffer.append(rows);
  EXPECT_TRUE(at::equal(buffer.rows(), rows.to(at::kBFloat16)));
  EXPECT_EQ(allocator->allocated_bytes(), 3 * 8);
}

TEST(KvBuffer, MoveTakesTheMemoryAlong) {
  auto allocator = std::make_shared<KvAllocator>(1);
  KvBuffer first(allocator, {4}, at::kFloat, 10);
  first.append(at::ones({2, 4}));
  KvBuffer second(allocator, {4}, at::kFloat, 10);
  second.append(at::zeros({5, 4}));
  second = std::move(first);
  EXPECT_TRUE(at::equal(second.rows(), at::ones({2, 4})));
  EXPECT_EQ(allocator->allocated_bytes(), 2 * 16);
}

TEST(KvBuffer, RefusesMoreRowsThanReserved) {
  KvBuffer buffer(std::make_shared<KvAllocator>(1), {1}, at::kFloat, 3);
  buffer.append(at::ones({3, 1}));
  EXPECT_THROW(buffer.append(at::ones({1, 1})), Error);
}

// The counted bytes are those the system hands out, and takes back.
TEST(KvBuffer, CountedBytesAreResident) {
  constexpr std::int64_t kWidth = 4096, kRows = 4096;  // 64 MiB
  constexpr double kSlack = 4.0 * (1 << 20);
  auto allocator = std::make_shared<KvAllocator>(16);
  KvBuffer buffer(allocator, {kWidth}, at::kFloat, 1 << 20);
  const at::Tensor rows = at::ones({256, kWidth});
  const std::int64_t before = resident_bytes();
  for (std::int64_t i = 0; i < kRows / 256; ++i) {
    buffer.append(rows);
  }
  EXPECT_EQ(allocator->allocated_bytes(), kRows * kWidth * 4);
  EXPECT_NEAR(static_cast<double>(resident_bytes() - before),
              static_cast<double>(allocator->allocated_bytes()), kSlack);
  buffer.erase(0, kRows - 16);
  EXPECT_NEAR(static_cast<double>(resident_bytes() - before),
              static_cast<double>(allocator->allocated_bytes()), kSlack);
}

}  // namespace
}  // namespace kvc
