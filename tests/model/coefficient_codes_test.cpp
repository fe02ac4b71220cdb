#include "model/coefficient_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using testing::random_normal;
using testing::tensors_close;
using testing::tensors_identical;

constexpr CoefficientAxis kBoth[] = {CoefficientAxis::kRows, CoefficientAxis::kColumns};

// Six coefficients of 1100 numbers, of falling size.
at::Tensor matrix_of(CoefficientAxis axis) {
  const at::Tensor rows =
      random_normal({6, 1100}, 5) * at::logspace(2, -3, 6, 10, at::kFloat).unsqueeze(1);
  return axis == CoefficientAxis::kRows ? rows : rows.t().contiguous();
}

at::Tensor decoded(const at::Tensor& matrix, CoefficientAxis axis, std::int64_t wide) {
  return decode_coefficients(code_coefficients(matrix, axis, wide), axis, at::kFloat);
}

TEST(CoefficientCodes, AreMultiplesOfEachCoefficientsOwnScale) {
  const at::Tensor matrix = at::tensor({127.0F, -63.6F, 0.4F, 0.25F, 0.5F, -0.1F}).view({2, 3});
  const CoefficientCodes codes = code_coefficients(matrix, CoefficientAxis::kRows, 1);
  EXPECT_TRUE(tensors_close(codes.scale, at::tensor({1.0F, 0.5F / 127}), 1e-9));
  EXPECT_TRUE(
      at::equal(codes.codes, at::tensor({127, -64, 0, 64, 127, -25}, at::kChar).view({2, 3})));
  // 256 * -63.6 = -16281.6 is -64 * 256 + 102; 256 * 0.4 = 102.4
  EXPECT_TRUE(at::equal(codes.low, at::tensor({0, 102, 102}, at::kChar).view({1, 3})));
  const at::Tensor read = decode_coefficients(codes, CoefficientAxis::kRows, at::kFloat);
  EXPECT_TRUE(tensors_close(
      read,
      at::tensor({127.0F, -64 + 102.0F / 256, 102.0F / 256, 32.0F / 127, 0.5F, -12.5F / 127})
          .view({2, 3}),
      1e-6));
}

TEST(CoefficientCodes, KeepThePrecisionOfEveryCoefficient) {
  for (const CoefficientAxis axis : kBoth) {
    const at::Tensor matrix = matrix_of(axis);
    const std::int64_t others = axis == CoefficientAxis::kRows ? 1 : 0;
    const at::Tensor step = matrix.abs().amax(others) / 127;
    const at::Tensor error = (decoded(matrix, axis, 2) - matrix).abs().amax(others);
    EXPECT_TRUE((error <= 0.501 * step).all().item<bool>());
    // The worst code of 16 bits is one that would need the low part 128.
    EXPECT_TRUE((error.narrow(0, 0, 2) <= 1.51 / 256 * step.narrow(0, 0, 2)).all().item<bool>());
    EXPECT_TRUE((error.narrow(0, 2, 4) > 0.4 * step.narrow(0, 2, 4)).all().item<bool>());
    EXPECT_TRUE(tensors_close(rounding_of(matrix, axis), decoded(matrix, axis, 0) - matrix, 1e-5));
  }
}

TEST(CoefficientCodes, AOneStaysAOne) {
  at::Tensor matrix = random_normal({40, 30}, 7) * 3;
  for (std::int64_t column = 0; column < 30; ++column) {
    matrix[column].zero_();
    matrix[column][column] = 1;
  }
  const at::Tensor read = decoded(matrix, CoefficientAxis::kColumns, 0);
  EXPECT_TRUE(tensors_identical(read.narrow(0, 0, 30), at::eye(30)));
  EXPECT_TRUE(tensors_close(read, matrix, 0.6 * 12 / 127));
}

TEST(CoefficientCodes, HoldZerosAndNothing) {
  EXPECT_TRUE(
      tensors_identical(decoded(at::zeros({3, 4}), CoefficientAxis::kRows, 1), at::zeros({3, 4})));
  EXPECT_EQ(decoded(at::zeros({0, 4}), CoefficientAxis::kRows, 0).sizes(), (at::IntArrayRef{0, 4}));
}

class CoefficientFile : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, at::Tensor>;

  Tensors tensors(CoefficientAxis axis) const {
    const CoefficientCodes codes = code_coefficients(matrix_of(axis), axis, 2);
    return {{"m", codes.codes}, {"m.scale", codes.scale}, {"m.low", codes.low}};
  }
  Checkpoint write(const Tensors& tensors) {
    const std::filesystem::path checkpoint = directory_ / std::to_string(count_++);
    testing::write_checkpoint_of(checkpoint, tensors);
    return Checkpoint::open(checkpoint);
  }
  static at::Tensor load(const Checkpoint& checkpoint, CoefficientAxis axis) {
    return load_coefficients(checkpoint, "m", matrix_of(axis).sizes().vec(), axis, at::kFloat);
  }
  std::string refusal(const std::function<void(Tensors&)>& edit) {
    Tensors edited = tensors(CoefficientAxis::kColumns);
    edit(edited);
    const Checkpoint checkpoint = write(edited);
    return error_of([&] { load(checkpoint, CoefficientAxis::kColumns); });
  }

  testing::TemporaryDirectory directory_;
  int count_ = 0;
};

TEST_F(CoefficientFile, IsReadInEitherForm) {
  for (const CoefficientAxis axis : kBoth) {
    const at::Tensor matrix = matrix_of(axis);
    EXPECT_TRUE(tensors_identical(load(write(tensors(axis)), axis), decoded(matrix, axis, 2)));
    EXPECT_TRUE(tensors_identical(load(write({{"m", matrix}}), axis), matrix));
  }
}

TEST_F(CoefficientFile, RefusesWhatIsDamaged) {
  EXPECT_THAT(refusal([](Tensors& all) { all.erase("m.scale"); }), HasSubstr("m.scale"));
  EXPECT_THAT(refusal([](Tensors& all) { all["m.scale"][1] = NAN; }),
              HasSubstr("m.scale: a scale that is not positive and finite; export again"));
  EXPECT_THAT(refusal([](Tensors& all) { all["m.scale"][1] = 0; }), HasSubstr("not positive"));
  EXPECT_THAT(refusal([](Tensors& all) { all["m.scale"] = all["m.scale"].narrow(0, 0, 5); }),
              HasSubstr("m.scale"));
  EXPECT_THAT(refusal([](Tensors& all) { all["m"] = all["m"].narrow(0, 0, 7); }), HasSubstr("m"));
  EXPECT_THAT(refusal([](Tensors& all) { all["m.low"] = all["m.low"].to(at::kFloat); }),
              HasSubstr("m.low: stored as F32, expected I8"));
  EXPECT_THAT(refusal([](Tensors& all) { all["m.low"] = all["m.low"].narrow(0, 0, 9); }),
              HasSubstr("m.low"));
  EXPECT_THAT(refusal([](Tensors& all) {
                all["m.low"] = at::zeros({1100, 7}, at::kChar);
              }),
              HasSubstr("m.low: 7 coefficients, expected at most 6"));
  EXPECT_THAT(refusal([](Tensors& all) { all["m.low"] = at::zeros({6}, at::kChar); }),
              HasSubstr("m.low"));
}

}  // namespace
}  // namespace kvc
