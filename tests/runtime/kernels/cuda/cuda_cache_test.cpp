// Kernels of caches, their own source run on the CPU, against the references.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/budget_part.h"
#include "runtime/kernels/cuda/code_tiles_kernel.h"
#include "runtime/kernels/cuda/quantise_rows_kernel.h"
#include "runtime/kernels/narrow.h"
#include "tests/runtime/kernels/cuda/emulated_cases.h"

namespace kvc::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Codes, EmulatedKernel, ::testing::ValuesIn(code_cases()),
                         kernel_case_name);
INSTANTIATE_TEST_SUITE_P(Pages, EmulatedKernel, ::testing::ValuesIn(paged_cases()),
                         kernel_case_name);
INSTANTIATE_TEST_SUITE_P(OpenTiles, EmulatedKernel, ::testing::ValuesIn(open_tile_cases()),
                         kernel_case_name);
INSTANTIATE_TEST_SUITE_P(Budgets, EmulatedKernel, ::testing::ValuesIn(budget_cases()),
                         kernel_case_name);

// Every finite float16, what lies between two of them, and numbers beyond.
TEST(Float16Bounds, AreTheReferences) {
  std::vector<float> numbers = {0.0f,     -0.0f,    1e-10f, -1e-10f, 65503.0f,
                                65519.0f, 65520.0f, -1e30f, 1e30f};
  for (std::uint32_t bits = 0; bits < 0x7C00; bits += 7) {
    const float x = to_float(Float16{static_cast<std::uint16_t>(bits)});
    for (const float factor : {1.0f, 1.0001f, 0.9999f}) {
      numbers.push_back(x * factor);
      numbers.push_back(-x * factor);
    }
  }
  for (const float x : numbers) {
    EXPECT_EQ(float16_at_most(x), narrow_float16(x, Rounding::kDown)) << x;
    EXPECT_EQ(float16_at_least(x), narrow_float16(x, Rounding::kUp)) << x;
  }
}

TEST(CodePlanes, OfFiveBitsAreFourAndOne) {
  const CodePlane four = plane_of_word(5, 3), one = plane_of_word(5, 4);
  EXPECT_EQ(four.plane, 4);
  EXPECT_EQ(four.shift, 1);
  EXPECT_EQ(one.plane, 1);
  EXPECT_EQ(one.shift, 0);
  EXPECT_EQ(one.first, 4);
}

TEST(BudgetStep, HasTheSameBitsInWhateverOrderPartsEnd) {
  std::vector<std::vector<std::uint16_t>> outputs;
  for (const ThreadOrder order : {ThreadOrder::kForward, ThreadOrder::kBackward}) {
    EmulatedBackend backend(order);
    outputs.push_back(budget_outputs(backend));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

TEST(BudgetStep, OfSeveralPartsNeedsACounter) {
  BudgetStep step{.head_dim = 64};
  step.partials.num_parts = 1;
  EXPECT_EQ(check_budget_step(step), "");
  step.partials.num_parts = 2;
  EXPECT_THAT(check_budget_step(step), ::testing::HasSubstr("`arrived`"));
}

TEST(BudgetStep, OfSeveralPartsThatRankNeedsMemoryForTheLowestOfEach) {
  std::uint32_t arrived = 0;
  BudgetStep step{.head_dim = 64, .arrived = &arrived, .products_stride = 9};
  step.partials.num_parts = 2;
  EXPECT_THAT(check_budget_step(step), ::testing::HasSubstr("`lowest`"));
  step.products_stride = 0;
  EXPECT_EQ(check_budget_step(step), "");
}

TEST(BudgetParts, AreNoMoreBlocksThanMultiprocessors) {
  EXPECT_EQ(budget_parts(132, 1, 8, 6554), 16);
  EXPECT_EQ(budget_parts(132, 16, 8, 1638), 1);
  EXPECT_EQ(budget_parts(132, 17, 8, 1638), 1);
  EXPECT_EQ(budget_parts(132, 1, 8, 700), 5);
  EXPECT_EQ(budget_parts(132, 1, 8, 0), 1);
}

// Every row once, the new token in the last tile.
TEST(BudgetTiles, HaveEveryRow) {
  for (const DeviceElement context : {DeviceElement::kBFloat16, DeviceElement::kInt8}) {
    for (const int rows : {0, 1, 3, 32, 64, 70, 103}) {
      const BudgetTiles tiles = budget_tiles({3, 64, 36, 1}, context, rows);
      std::vector<int> found;
      for (int tile = 0; tile < tiles.count(); ++tile) {
        for (int i = 0; i < kTileRows; ++i) {
          const int row = tiles.row(tile, i);
          const bool is_code = is_coded(context) && row >= 3 && row < 67 && row != rows;
          if (row >= 0) {
            EXPECT_EQ(tiles.is_code(tile), is_code) << row << " of " << rows;
            found.push_back(row);
          }
        }
      }
      EXPECT_EQ(found.back(), rows);
      std::vector<int> expected(static_cast<std::size_t>(rows) + 1);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_THAT(found, ::testing::UnorderedElementsAreArray(expected));
    }
  }
}

TEST(BudgetFill, IsEveryTokenUntilTheBudgetIsExceeded) {
  const BudgetLayout layout{1, 3, 4, 2};
  EXPECT_EQ(layout.budget(), 10);
  const BudgetFill some = budget_fill(layout, 6), most = budget_fill(layout, 10),
                   all = budget_fill(layout, 11);
  EXPECT_EQ(some.rows, 6);
  EXPECT_EQ(most.rows, 10);
  EXPECT_FALSE(most.is_laid_out);
  EXPECT_EQ(most.residual, 0);
  EXPECT_TRUE(all.is_laid_out);
  EXPECT_EQ(all.rows, 8);
  EXPECT_EQ(all.residual, 2);
  EXPECT_EQ(ring_row(layout, 11), 4 + 3);
}

TEST(Lower, TakesTheEarlierOfEqualOnes) {
  EXPECT_EQ(lower({1, 7, 0}, {1, 5, 3}).row, 3);
  EXPECT_EQ(lower({1, 5, 0}, {1, 7, 3}).row, 0);
  EXPECT_EQ(lower({1, 5, 0}, {0.5f, 7, 3}).row, 3);
  EXPECT_EQ(lower(nothing_chosen(), {0.5f, 7, 3}).row, 3);
}

TEST(MergedNumber, IsTheMeanOfAllMembers) { EXPECT_FLOAT_EQ(merged_number(2, 3, 6), 3); }

}  // namespace
}  // namespace kvc::testing
