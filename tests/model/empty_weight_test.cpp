#include "model/tensor_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tests/testing/process_memory.h"

namespace kvc {
namespace {

using testing::anonymous_bytes;

TEST(EmptyWeight, HasTheSizesAndType) {
  for (const std::int64_t rows : {0, 1, 1000, 9000, 70000}) {
    const at::Tensor tensor = empty_weight({rows, 1024}, at::kBFloat16);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({rows, 1024}));
    EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64, 0) << rows;
  }
}

// Tensors come and go in any order, and none is written to by another.
TEST(EmptyWeight, KeepsTensorsApart) {
  std::mt19937 random(1);
  struct Held {
    at::Tensor tensor;
    std::int64_t value;
  };
  std::vector<Held> all;
  const auto check = [](const Held& held) {
    return at::equal(held.tensor, at::full_like(held.tensor, held.value));
  };
  for (std::int64_t step = 0; step < 600; ++step) {
    if (all.size() > 20 || (!all.empty() && random() % 3 == 0)) {
      const std::size_t which = random() % all.size();
      ASSERT_TRUE(check(all[which])) << step;
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const auto count =
        static_cast<std::int64_t>((std::size_t{1} << random() % 23) + random() % 1000);
    all.push_back({empty_weight({count}, at::kInt), step});
    all.back().tensor.fill_(step);
  }
  for (const Held& held : all) {
    EXPECT_TRUE(check(held));
  }
}

// As threads that load layers do.
TEST(EmptyWeight, IsTakenAndGivenBackOnSeveralThreads) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&wrong, thread] {
      std::vector<at::Tensor> all;
      for (int step = 0; step < 100; ++step) {
        all.push_back(empty_weight({20000 + 997 * step}, at::kInt).fill_(1000 * thread + step));
        if (step % 3 == 2) {
          const at::Tensor& oldest = all.front();
          const int value = oldest[0].item<int>();
          wrong += value / 1000 != thread || !at::equal(oldest, at::full_like(oldest, value));
          all.erase(all.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

// Ones that get memory of their own, of a number of bytes that is no multiple of anything.
TEST(EmptyWeight, GivesMemoryOfLargeOnesBack) {
  constexpr std::int64_t kBytes = (std::int64_t{140} << 20) + 12345;
  const std::int64_t before = anonymous_bytes();
  at::Tensor large = empty_weight({kBytes}, at::kByte).fill_(7);
  EXPECT_EQ(large[kBytes - 1].item<int>(), 7);
  EXPECT_GT(anonymous_bytes() - before, kBytes * 3 / 4);
  large.reset();
  EXPECT_LT(anonymous_bytes() - before, kBytes / 4);
}

// What is taken and dropped again and again, beside something that stays, does not add up.
TEST(EmptyWeight, GivesMemoryBack) {
  constexpr std::int64_t kBytes = std::int64_t{24} << 20;
  const at::Tensor stays = empty_weight({kBytes}, at::kByte).fill_(1);
  empty_weight({kBytes}, at::kByte).fill_(1);
  const std::int64_t before = anonymous_bytes();
  for (int i = 0; i < 50; ++i) {
    empty_weight({kBytes + i}, at::kByte).fill_(1);
  }
  EXPECT_LT(anonymous_bytes() - before, kBytes);
  at::Tensor more = empty_weight({kBytes}, at::kByte).fill_(1);
  EXPECT_GT(anonymous_bytes() - before, kBytes * 3 / 4);
  EXPECT_TRUE(at::equal(stays, at::ones_like(stays)));
}

}  // namespace
}  // namespace kvc
