#include "runtime/store/row_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/error.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using testing::tensors_close;
using ::testing::ThrowsMessage;

at::Tensor numbered_rows(std::int64_t first, std::int64_t count, std::int64_t width) {
  return at::arange(first, first + count, at::kFloat).unsqueeze(1).expand({count, width});
}

RowStore floats(const std::shared_ptr<KvPool>& pool, std::vector<std::int64_t> shape,
                at::ScalarType dtype = at::kFloat) {
  return {pool, {.shape = std::move(shape), .dtype = dtype}};
}

RowStore codes(const std::shared_ptr<KvPool>& pool, std::vector<std::int64_t> shape,
               KvElement element, KvScales scales) {
  return {pool, {.shape = std::move(shape), .codes = {{element, scales}}}};
}

TEST(RowStore, GrowsByPagesAndKeepsRows) {
  auto pool = std::make_shared<KvPool>(16);
  RowStore store = floats(pool, {2, 3});
  EXPECT_EQ(store.bytes(), 0);
  const at::Tensor rows = at::arange(17 * 6, at::kFloat).view({17, 2, 3});
  store.append(rows.narrow(0, 0, 1));
  EXPECT_EQ(pool->allocated_bytes(), 16 * 24);
  store.append(rows.narrow(0, 1, 16));
  EXPECT_EQ(pool->allocated_bytes(), 32 * 24);
  EXPECT_TRUE(at::equal(store.rows(at::kFloat), rows));
  EXPECT_TRUE(at::equal(store.rows(15, 2, at::kFloat), rows.narrow(0, 15, 2)));
  EXPECT_THROW(store.rows(16, 2, at::kFloat), Error);
  EXPECT_THROW(store.append(at::zeros({1, 5})), Error);
}

TEST(RowStore, EraseMovesLaterRowsDownAndFreesBlocks) {
  auto pool = std::make_shared<KvPool>(4);
  RowStore store = floats(pool, {5});
  store.append(numbered_rows(0, 12, 5));
  store.erase(2, 7);
  EXPECT_TRUE(
      at::equal(store.rows(at::kFloat), at::cat({numbered_rows(0, 2, 5), numbered_rows(9, 3, 5)})));
  EXPECT_EQ(store.bytes(), 8 * 20);
  store.append(numbered_rows(12, 1, 5));
  EXPECT_EQ(store.rows(5, 1, at::kFloat)[0][0].item<float>(), 12);
  EXPECT_EQ(pool->peak_bytes(), 12 * 20);
  EXPECT_THROW(store.erase(5, 2), Error);
}

TEST(RowStore, CastsToItsType) {
  auto pool = std::make_shared<KvPool>(1);
  RowStore store = floats(pool, {4}, at::kBFloat16);
  const at::Tensor rows = at::rand({3, 4});
  store.append(rows);
  EXPECT_TRUE(at::equal(store.rows(at::kBFloat16), rows.to(at::kBFloat16)));
  EXPECT_EQ(pool->allocated_bytes(), 3 * 8);
}

TEST(RowStore, Float16Saturates) {
  RowStore store = floats(std::make_shared<KvPool>(1), {3}, at::kHalf);
  store.append(at::tensor({1e6F, -7e4F, 2.0F}).unsqueeze(0));
  store.append(at::tensor({1e6F, -7e4F, 2.0F}).unsqueeze(0).to(at::kBFloat16));
  for (std::int64_t row = 0; row < 2; ++row) {
    EXPECT_TRUE(
        at::equal(store.rows(row, 1, at::kFloat)[0], at::tensor({65504.0F, -65504.0F, 2.0F})));
  }
}

TEST(RowStore, CopiesShareBlocksUntilOneWrites) {
  auto pool = std::make_shared<KvPool>(4);
  RowStore first = floats(pool, {1});
  first.append(numbered_rows(0, 10, 1));
  RowStore second = first;
  EXPECT_EQ(pool->num_blocks(), 3);
  second.append(numbered_rows(50, 1, 1));  // into the last block, which it copies
  EXPECT_EQ(pool->num_blocks(), 4);
  first.append(numbered_rows(60, 3, 1));
  EXPECT_EQ(pool->num_blocks(), 5);
  first.erase(1, 2);  // every block of first is written
  EXPECT_EQ(pool->num_blocks(), 6);
  EXPECT_TRUE(at::equal(second.rows(at::kFloat),
                        at::cat({numbered_rows(0, 10, 1), numbered_rows(50, 1, 1)})));
  EXPECT_TRUE(at::equal(
      first.rows(at::kFloat),
      at::cat({numbered_rows(0, 1, 1), numbered_rows(3, 7, 1), numbered_rows(60, 3, 1)})));
}

// Codes by hand: 0 .. 255 in one row of one scale is exact, so is any line of 256, 16 or 4 even steps.
TEST(RowStore, CodesOfEvenStepsAreExact) {
  auto pool = std::make_shared<KvPool>(32);
  RowStore values = codes(pool, {32}, KvElement::kInt4, KvScales::kPerRow);
  const at::Tensor steps = at::arange(32, at::kFloat).remainder(16).unsqueeze(0);
  values.append(steps * 0.5 - 3);
  EXPECT_TRUE(at::equal(values.rows(at::kFloat), steps * 0.5 - 3));
  RowStore keys = codes(pool, {2}, KvElement::kInt8, KvScales::kPerChannel);
  const at::Tensor lines =
      at::stack({at::arange(32, at::kFloat) * 255 / 31, at::full({32}, -7.0)}, 1).round();
  keys.append(lines);
  EXPECT_TRUE(at::equal(keys.rows(at::kFloat), lines));
  EXPECT_EQ(values.bytes(), 32 * (16 + 4));
  RowStore quarters = codes(pool, {32}, KvElement::kInt2, KvScales::kPerRow);
  quarters.append(steps.remainder(4) * 0.5 - 3);
  EXPECT_TRUE(at::equal(quarters.rows(at::kFloat), steps.remainder(4) * 0.5 - 3));
  EXPECT_EQ(quarters.bytes(), 32 * (8 + 4));
  EXPECT_EQ(keys.bytes(), 32 * 2 + 2 * 4);
}

// |error| <= scale / 2, and scale is at most range / levels rounded up to float16.
void expect_half_a_step(const at::Tensor& actual, const at::Tensor& expected,
                        const at::Tensor& range, double levels) {
  const at::Tensor most = range / levels * (0.5 * 1.003) + expected.abs() * 1e-3 / levels + 1e-6;
  EXPECT_TRUE(((actual - expected).abs() <= most).all().item<bool>())
      << "worst " << ((actual - expected).abs() / most).max().item<float>() << " of half a step";
}

TEST(RowStore, CodesLoseAtMostHalfAStep) {
  constexpr std::int64_t kRows = 96, kHeads = 3, kChannels = 24;  // 8 channels share a scale
  const at::Tensor rows = testing::random_normal({kRows, kHeads, kChannels}, 1) *
                          testing::random_normal({kHeads, kChannels}, 2).exp();
  for (const KvElement element : {KvElement::kInt8, KvElement::kInt4, KvElement::kInt2}) {
    const double levels = largest_code(element);
    for (const KvScales scales : {KvScales::kPerRow, KvScales::kPerChannel}) {
      RowStore store = codes(std::make_shared<KvPool>(64), {kHeads, kChannels}, element, scales);
      store.append(rows.narrow(0, 0, 32));
      store.append(rows.narrow(0, 32, 64));
      const bool per_row = scales == KvScales::kPerRow;
      const at::Tensor groups = per_row ? rows.unflatten(2, {-1, 8}) : rows.unflatten(0, {-1, 32});
      const std::int64_t axis = per_row ? 3 : 1;
      const at::Tensor range = (groups.amax(axis, true) - groups.amin(axis, true))
                                   .expand_as(groups)
                                   .reshape({kRows, kHeads, kChannels});
      expect_half_a_step(store.rows(at::kFloat), rows, range, levels);
      EXPECT_TRUE(
          at::equal(store.rows(30, 40, at::kFloat), store.rows(at::kFloat).narrow(0, 30, 40)));
      EXPECT_EQ(store.bytes(), kv_rows_bytes(128, kHeads * kChannels, kChannels, element, scales));
    }
  }
}

// Rows one at a time and all at once, of any type, are the same codes.
TEST(RowStore, CodesOfLatentsDoNotDependOnHowTheyCome) {
  const at::Tensor rows = testing::random_normal({50, 64}, 3).to(at::kBFloat16);
  auto pool = std::make_shared<KvPool>(16);
  RowStore one = codes(pool, {64}, KvElement::kInt4, KvScales::kPerRow), all = one;
  all.append(rows.to(at::kFloat));
  for (std::int64_t row = 0; row < 50; ++row) {
    one.append(rows.narrow(0, row, 1));
  }
  EXPECT_TRUE(at::equal(one.rows(at::kFloat), all.rows(at::kFloat)));
}

TEST(RowStore, RefusesCodesThatDoNotExist) {
  EXPECT_THAT(
      ([] {
        codes(std::make_shared<KvPool>(16), {2, 8}, KvElement::kInt8, KvScales::kPerChannel);
      }),
      ThrowsMessage<Error>(HasSubstr("--page-tokens 32")));
  EXPECT_THAT(([] {
                codes(std::make_shared<KvPool>(32), {2, 3}, KvElement::kInt4, KvScales::kPerRow);
              }),
              ThrowsMessage<Error>(HasSubstr("use int8")));
  EXPECT_THAT(([] {
                codes(std::make_shared<KvPool>(32), {2, 6}, KvElement::kInt2, KvScales::kPerRow);
              }),
              ThrowsMessage<Error>(HasSubstr("4 channels in a byte, a row has 6; use int8")));
}

}  // namespace
}  // namespace kvc
