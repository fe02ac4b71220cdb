#include "runtime/store/kv_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include "core/error.h"
#include "runtime/store/block_list.h"

namespace kvc::kv_pool_test {
namespace {

// Memory of this process that is really in use.
std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(KvPool, CountsBlocksOnceHoweverManyShareThem) {
  KvPool pool(16);
  {
    const KvBlock block = pool.allocate(100);
    EXPECT_FALSE(block.is_shared());
    const KvBlock copy = block;
    EXPECT_TRUE(block.is_shared());
    EXPECT_EQ(copy.data(), block.data());
    EXPECT_EQ(pool.allocated_bytes(), 100);
    const KvBlock other = pool.allocate(30);
    EXPECT_NE(other.data(), block.data());
    EXPECT_EQ(pool.num_blocks(), 2);
  }
  EXPECT_EQ(pool.num_blocks(), 0);
  EXPECT_EQ(pool.allocated_bytes(), 0);
  EXPECT_EQ(pool.num_slabs(), 0);
  EXPECT_EQ(pool.peak_bytes(), 130);
}

TEST(KvPool, RefusesPagesWithoutTokens) { EXPECT_THROW(KvPool(0), Error); }

// Blocks come and go at random, of sizes below and above a page of the system; none overlaps another.
TEST(KvPool, BlocksKeepWhatIsWrittenAndAllReturn) {
  KvPool pool(1);
  std::mt19937 random(1);
  constexpr std::int64_t kSizes[] = {4, 200, 4096, 5000, 70000};
  struct Held {
    KvBlock block;
    std::int64_t bytes;
    unsigned char fill;
  };
  std::vector<Held> held;
  std::int64_t bytes = 0;
  for (int step = 0; step < 4000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      const std::int64_t size = kSizes[random() % 5];
      held.push_back({pool.allocate(size), size, static_cast<unsigned char>(random())});
      std::memset(held.back().block.data(), held.back().fill, static_cast<std::size_t>(size));
      bytes += size;
    } else {
      std::swap(held[random() % held.size()], held.back());
      const Held& last = held.back();
      const std::vector<unsigned char> expected(static_cast<std::size_t>(last.bytes), last.fill);
      ASSERT_EQ(std::memcmp(last.block.data(), expected.data(), expected.size()), 0);
      bytes -= last.bytes;
      held.pop_back();
    }
    ASSERT_EQ(pool.allocated_bytes(), bytes);
  }
  held.clear();
  EXPECT_EQ(pool.num_blocks(), 0);
  EXPECT_EQ(pool.num_slabs(), 0);
}

// What is taken one after the other lies so, as far as blocks are free, in whatever order they were given back.
TEST(KvPool, TakesTheFirstFreeBlock) {
  KvPool pool(1);
  std::vector<KvBlock> blocks;
  for (int i = 0; i < 40; ++i) {
    blocks.push_back(pool.allocate(1000));
    EXPECT_EQ(blocks.back().data(), blocks.front().data() + i * 1000);
  }
  for (const std::size_t index : {7, 3, 30, 12, 4}) {
    blocks[index] = KvBlock();
  }
  for (const std::size_t index : {3, 4, 7, 12, 30, 40}) {
    blocks.push_back(pool.allocate(1000));
    EXPECT_EQ(blocks.back().data(), blocks.front().data() + index * 1000);
  }
}

// The counted bytes are those that the system hands out, and takes back, whatever the blocks' size.
TEST(KvPool, CountedBytesAreResident) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer holds back what is freed";
#endif
  constexpr std::int64_t kTotal = 64 << 20;
  constexpr double kSlack = 4.0 * (1 << 20);
  for (const std::int64_t size : {1000, 4096, 6144, 300000}) {
    KvPool pool(1);
    std::vector<KvBlock> blocks;
    const std::int64_t before = resident_bytes();
    for (std::int64_t i = 0; i < kTotal / size; ++i) {
      blocks.push_back(pool.allocate(size));
      std::memset(blocks.back().data(), 1, static_cast<std::size_t>(size));
    }
    const auto resident = [&] { return static_cast<double>(resident_bytes() - before); };
    EXPECT_NEAR(resident(), static_cast<double>(pool.allocated_bytes()), kSlack) << size;
    // A sixteenth of the blocks stays, in groups as stores leave them.
    std::vector<KvBlock> kept;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i / 32 % 16 == 0) {
        kept.push_back(blocks[i]);
      }
    }
    blocks.clear();
    blocks.shrink_to_fit();
    EXPECT_NEAR(resident(), static_cast<double>(pool.allocated_bytes()), kSlack) << size;
    kept.clear();
    EXPECT_NEAR(resident(), 0, kSlack) << size;
  }
}

TEST(BlockList, CopiesASharedBlockBeforeItIsWritten) {
  auto pool = std::make_shared<KvPool>(1);
  BlockList first(pool, 8);
  first.resize(3);
  for (std::int64_t i = 0; i < 3; ++i) {
    std::memset(first.writable(i), static_cast<int>(i), 8);
  }
  EXPECT_EQ(pool->shared_bytes(), 0);
  BlockList second = first;
  EXPECT_EQ(pool->num_blocks(), 3);
  EXPECT_EQ(pool->shared_bytes(), first.bytes());
  EXPECT_EQ(second.data(1), first.data(1));
  *second.writable(1) = std::byte{9};
  EXPECT_EQ(pool->num_blocks(), 4);
  EXPECT_EQ(pool->shared_bytes(), 2 * first.block_bytes());
  EXPECT_EQ(*first.data(1), std::byte{1});
  EXPECT_EQ(second.data(1)[0], std::byte{9});
  EXPECT_EQ(second.data(1)[1], std::byte{1});
  EXPECT_EQ(second.table()[2], first.table()[2]);
  first.resize(0);
  EXPECT_EQ(pool->num_blocks(), 3);
  EXPECT_EQ(pool->shared_bytes(), 0);
  const std::byte* own = second.data(2);
  EXPECT_EQ(second.writable(2), own);  // no longer shared
}

TEST(BlockList, AssignedListsReturnTheirBlocksFirst) {
  BlockList list(std::make_shared<KvPool>(1), 8);
  list.resize(2);
  auto pool = std::make_shared<KvPool>(1);
  BlockList other(pool, 16);
  other.resize(1);
  list = other;
  EXPECT_EQ(list.bytes(), 16);
  EXPECT_EQ(pool->num_blocks(), 1);
}

}  // namespace
}  // namespace kvc::kv_pool_test
