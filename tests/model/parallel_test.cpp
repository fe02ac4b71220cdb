#include "model/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace kvc {
namespace {

// Every phase finds all of what the one before wrote, whoever wrote it.
TEST(ParallelPhases, FollowEachOther) {
  constexpr std::int64_t kCount = 1000;
  for (const std::int64_t max_threads : {1, 2, 3, 64}) {
    std::vector<int> numbers(kCount, 0);
    std::atomic<int> wrong = 0;
    const auto add = [&](int before) -> Phase {
      return [&, before](std::int64_t thread, std::int64_t threads) {
        // From the other end than the phase before.
        for (std::int64_t i = kCount * thread / threads; i < kCount * (thread + 1) / threads; ++i) {
          int& number = numbers[static_cast<std::size_t>(before % 2 == 0 ? i : kCount - 1 - i)];
          wrong += number != before;
          ++number;
        }
      };
    };
    parallel_phases(max_threads, {add(0), add(1), add(2)});
    EXPECT_EQ(wrong, 0) << max_threads;
    EXPECT_EQ(numbers, std::vector<int>(kCount, 3)) << max_threads;
  }
}

TEST(ParallelPhases, EndWithTheFirstFailure) {
  std::atomic<int> later = 0;
  EXPECT_THROW(parallel_phases(2, {[](std::int64_t thread, std::int64_t) {
                                     if (thread == 0) {
                                       throw std::runtime_error("failed");
                                     }
                                   },
                                   [&](std::int64_t, std::int64_t) { ++later; }}),
               std::runtime_error);
  EXPECT_EQ(later, 0);
}

// Every number is in one share, and all but the last are multiples of the smallest.
TEST(ParallelShares, CoverAllOnce) {
  for (const std::int64_t count : {0, 1, 7, 64, 1000, 4099}) {
    for (const std::int64_t smallest : {1, 4, 100, 5000}) {
      std::vector<int> times(static_cast<std::size_t>(count), 0);
      std::atomic<int> odd = 0;
      parallel_shares(count, smallest, [&](std::int64_t begin, std::int64_t end) {
        odd += begin % smallest != 0 || (end % smallest != 0 && end != count);
        for (std::int64_t i = begin; i < end; ++i) {
          ++times[static_cast<std::size_t>(i)];
        }
      });
      EXPECT_EQ(times, std::vector<int>(static_cast<std::size_t>(count), 1)) << count;
      EXPECT_EQ(odd, 0) << count << " " << smallest;
    }
  }
}

}  // namespace
}  // namespace kvc
