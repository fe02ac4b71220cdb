#include "model/empty_weight.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <vector>

namespace kvc {
namespace {

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(EmptyWeight, HasTheSizesAndType) {
  for (const std::int64_t rows : {0, 1, 1000, 9000, 70000}) {
    const at::Tensor tensor = empty_weight({rows, 1024}, at::kBFloat16);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({rows, 1024}));
    EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(tensor.is_contiguous());
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

// What is taken and dropped again and again, beside something that stays, does not add up.
TEST(EmptyWeight, GivesMemoryBack) {
  constexpr std::int64_t kBytes = std::int64_t{24} << 20;
  const at::Tensor stays = empty_weight({kBytes}, at::kByte).fill_(1);
  empty_weight({kBytes}, at::kByte).fill_(1);
  const std::int64_t before = resident_bytes();
  for (int i = 0; i < 50; ++i) {
    empty_weight({kBytes + i}, at::kByte).fill_(1);
  }
  EXPECT_LT(resident_bytes() - before, kBytes);
  at::Tensor more = empty_weight({kBytes}, at::kByte).fill_(1);
  EXPECT_GT(resident_bytes() - before, kBytes * 3 / 4);
  EXPECT_TRUE(at::equal(stays, at::ones_like(stays)));
}

}  // namespace
}  // namespace kvc
