#include "model/parallel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
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

using Loop = void (*)(std::int64_t, std::int64_t,
                      const std::function<void(std::int64_t, std::int64_t)>&);

class ParallelLoops : public ::testing::TestWithParam<Loop> {
 protected:
  // How often the loop comes by every number.
  static std::vector<int> times(std::int64_t count, std::int64_t step) {
    std::vector<int> numbers(static_cast<std::size_t>(count), 0);
    GetParam()(count, step, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        ++numbers[static_cast<std::size_t>(i)];
      }
    });
    return numbers;
  }
  static std::vector<int> ones(std::int64_t count) {
    return std::vector<int>(static_cast<std::size_t>(count), 1);
  }
};

TEST_P(ParallelLoops, CoverAllOnce) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    for (const std::int64_t count : {0, 1, 7, 64, 1000, 4099}) {
      for (const std::int64_t step : {1, 4, 100, 5000}) {
        EXPECT_EQ(times(count, step), ones(count)) << threads << " threads, steps of " << step;
      }
    }
  }
  at::set_num_threads(before);
}

// On one thread then.
TEST_P(ParallelLoops, CoverAllInsideOfEachOther) {
  std::atomic<int> wrong = 0;
  GetParam()(20, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      wrong += times(100 + i, 3) != ones(100 + i);
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(ParallelLoops, PassFailuresOn) {
  EXPECT_THROW(GetParam()(1000, 1,
                          [](std::int64_t begin, std::int64_t end) {
                            if (begin <= 500 && 500 < end) {
                              throw std::runtime_error("failed");
                            }
                          }),
               std::runtime_error);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ParallelLoops,
                         ::testing::Values(parallel_pieces, parallel_chunks, parallel_shares));

// All shares but the last are multiples of the smallest.
TEST(ParallelShares, BeginAtMultiples) {
  for (const std::int64_t count : {7, 64, 4099}) {
    for (const std::int64_t smallest : {1, 4, 100, 5000}) {
      std::atomic<int> odd = 0;
      parallel_shares(count, smallest, [&](std::int64_t begin, std::int64_t end) {
        odd += begin % smallest != 0 || (end % smallest != 0 && end != count);
      });
      EXPECT_EQ(odd, 0) << count << " " << smallest;
    }
  }
}

TEST(CopyInParallel, CopiesEveryByteAndNoOther) {
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, (std::int64_t{1} << 23) + 5,
                                   (std::int64_t{1} << 25) + 4097}) {
    const at::Tensor from = at::randint(256, {bytes}, at::kByte);
    const at::Tensor to = at::zeros({bytes + 2}, at::kByte);
    copy_in_parallel(to.mutable_data_ptr<std::uint8_t>() + 1, from.const_data_ptr(),
                     static_cast<std::size_t>(bytes));
    EXPECT_TRUE(at::equal(to.narrow(0, 1, bytes), from)) << bytes;
    EXPECT_EQ(to[0].item<int>() + to[bytes + 1].item<int>(), 0) << bytes;
  }
}

}  // namespace
}  // namespace kvc
