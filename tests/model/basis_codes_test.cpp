#include "model/basis_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
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

constexpr std::int64_t kChannels = 96;
constexpr const char* kPrefix = "kvconvert.coded.3.";

// E = U^T R^T and F = R^-T U, whole, under a metric whose channels differ by four orders of magnitude.
BasisTransform whole_transform() {
  const at::Tensor u =
      std::get<0>(at::linalg_qr(random_normal({kChannels, kChannels}, 1))).to(at::kDouble);
  const at::Tensor scales = at::logspace(-2, 2, kChannels, 10, at::kDouble);
  const at::Tensor mix = at::eye(kChannels, at::kDouble) +
                         0.05 * random_normal({kChannels, kChannels}, 2).to(at::kDouble);
  const at::Tensor root = at::mm(scales.diag(), mix);
  return {at::mm(u.t(), root.t()), at::mm(at::linalg_inv(root.t()), u)};
}

BasisTransform kept(const BasisTransform& whole, std::int64_t k) {
  return {whole.encoder.narrow(0, 0, k).contiguous(), whole.decoder.narrow(1, 0, k).contiguous()};
}

// Squared error in the metric of coefficients with falling variances, coded with a step each, through `used`.
double error_through(const BasisTransform& whole, const BasisTransform& used) {
  const at::Tensor variances = at::logspace(0, -5, kChannels, 10, at::kDouble);
  const at::Tensor noise = at::full({used.encoder.size(0)}, 1e-5, at::kDouble);
  const at::Tensor decoder = at::mm(whole.encoder, used.decoder);
  const at::Tensor lost =
      at::eye(kChannels, at::kDouble) - at::mm(decoder, at::mm(used.encoder, whole.decoder));
  return ((lost.square().sum(0) * variances).sum() + (decoder.square().sum(0) * noise).sum())
      .item<double>();
}

at::Tensor rounded(const at::Tensor& matrix, std::int64_t axis) {
  const at::Tensor scale = matrix.abs().amax(axis, true) / 127;
  return (matrix / scale).round() * scale;
}

TEST(BasisCodes, RoundAwayNothingThatIsSeen) {
  const BasisTransform whole = whole_transform();
  for (const std::int64_t k : {96, 95, 60, 48, 47, 12, 1}) {
    SCOPED_TRACE(k);
    const BasisTransform exact = kept(whole, k);
    const BasisCodes codes = code_basis(balanced_basis(exact), k / 2);
    const BasisTransform read = decode_basis(codes, k, "test");
    EXPECT_TRUE(tensors_close(at::mm(read.encoder, read.decoder), at::eye(k, at::kDouble), 1e-9));
    EXPECT_LT(error_through(whole, read), 1.01 * error_through(whole, exact));
    if (k > 12) {  // below it, what is not kept hides what rounding adds
      const BasisTransform plain{rounded(exact.encoder, 1), rounded(exact.decoder, 0)};
      EXPECT_GT(error_through(whole, plain), 1.2 * error_through(whole, exact));
    }
  }
}

TEST(BasisCodes, TakeTheBytesOfTheSmallerForm) {
  for (const std::int64_t k : {96, 48, 47, 5}) {
    const BasisCodes codes = code_basis(balanced_basis(kept(whole_transform(), k)), k / 3);
    std::int64_t bytes = 0;
    const std::vector<BasisCodeSpec> specs = basis_code_specs(kChannels, k);
    for (const auto& [name, tensor] : codes.named()) {
      EXPECT_TRUE(std::ranges::any_of(specs, [&](const auto& spec) { return name == spec.name; }))
          << name;
      bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
    EXPECT_EQ(bytes, basis_code_bytes(kChannels, k, k / 3));
    EXPECT_EQ(codes.encoder.defined(), k < 48);
  }
}

class BasisCodesFile : public ::testing::Test {
 protected:
  // A checkpoint with the codes of `k` coefficients, after `edit`.
  Checkpoint write(std::int64_t k, const std::function<void(BasisCodes&)>& edit = {}) {
    BasisCodes codes = code_basis(balanced_basis(kept(whole_transform(), k)), k / 3);
    if (edit) {
      edit(codes);
    }
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, tensor] : codes.named()) {
      tensors[kPrefix + name] = tensor;
    }
    const std::filesystem::path checkpoint = directory_ / std::to_string(count_++);
    testing::write_checkpoint_of(checkpoint, tensors);
    return Checkpoint::open(checkpoint);
  }

  testing::TemporaryDirectory directory_;
  int count_ = 0;
};

TEST_F(BasisCodesFile, IsReadAsWritten) {
  for (const std::int64_t k : {90, 12}) {
    const BasisCodes codes = code_basis(balanced_basis(kept(whole_transform(), k)), k / 3);
    const BasisCodes read = load_basis_codes(write(k), kPrefix, kChannels, k);
    EXPECT_TRUE(tensors_identical(read.decoder, codes.decoder));
    EXPECT_TRUE(tensors_identical(read.decoder_scale, codes.decoder_scale));
    EXPECT_TRUE(tensors_identical(read.decoder_low, codes.decoder_low));
    EXPECT_TRUE(tensors_identical(read.channel_scale, codes.channel_scale));
    EXPECT_EQ(read.encoder.defined(), k == 12);
  }
}

TEST_F(BasisCodesFile, RefusesWhatHasNoInverse) {
  const auto refusal = [&](std::int64_t k, const std::function<void(BasisCodes&)>& edit) {
    const Checkpoint checkpoint = write(k, edit);
    return error_of(
        [&] { decode_basis(load_basis_codes(checkpoint, kPrefix, kChannels, k), k, "the block"); });
  };
  EXPECT_THAT(refusal(90, [](BasisCodes& codes) { codes.decoder.select(1, 80).zero_(); }),
              HasSubstr("the block: the stored basis has no inverse"));
  EXPECT_THAT(refusal(12, [](BasisCodes& codes) { codes.encoder[0].copy_(codes.encoder[1]); }),
              HasSubstr("no inverse"));
  EXPECT_THAT(refusal(90, [](BasisCodes& codes) { codes.decoder_scale[3] = 0; }),
              HasSubstr("kvconvert.coded.3.decoder_scale: a scale"));
  EXPECT_THAT(refusal(90, [](BasisCodes& codes) { codes.channel_scale[0] = NAN; }),
              HasSubstr("channel_scale"));
  EXPECT_THAT(refusal(90, [](BasisCodes& codes) { codes.decoder = codes.decoder.to(at::kFloat); }),
              HasSubstr("stored as F32, expected I8"));
  EXPECT_THAT(refusal(90, [](BasisCodes& codes) { codes.decoder_low = at::zeros({}, at::kChar); }),
              HasSubstr("kvconvert.coded.3.decoder_low: 0 dimensions, expected 2"));
}

}  // namespace
}  // namespace kvc
