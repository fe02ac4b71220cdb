#include "calibrate/analysis.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/hdf5.h"
#include "core/output.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

at::Tensor random_rows(std::int64_t rows, std::int64_t width, std::uint64_t seed) {
  return testing::random_normal({rows, width}, seed);
}

TEST(Similarity, CosineIsThatOfTokens) {
  const at::Tensor x = random_rows(50, 8, 1);
  const at::Tensor y = random_rows(50, 8, 2);
  const at::Tensor matrix = cosine_matrix({x, 3 * x, -x, y});
  EXPECT_NEAR(matrix[0][0].item<double>(), 1, 1e-6);
  EXPECT_NEAR(matrix[0][1].item<double>(), 1, 1e-6);
  EXPECT_NEAR(matrix[2][0].item<double>(), -1, 1e-6);
  const double expected =
      ((x * y).sum(1) / (x.norm(2, {1}) * y.norm(2, {1}))).mean().item<double>();
  EXPECT_NEAR(matrix[0][3].item<double>(), expected, 1e-6);
  EXPECT_EQ(matrix[3][0].item<double>(), matrix[0][3].item<double>());
}

// Invariant to shifts, scales and rotations of one layer; the same through Gram matrices, which wide
// vectors are compared by.
TEST(Similarity, CkaSeesShapesOnly) {
  for (const std::int64_t width : {6, 60}) {
    const at::Tensor x = random_rows(40, width, 3);
    const at::Tensor rotation = std::get<0>(at::linalg_qr(random_rows(width, width, 4)));
    const at::Tensor y = 2 * at::mm(x, rotation) + 5;
    const at::Tensor other = random_rows(40, width, 5);
    const at::Tensor matrix = cka_matrix({x, y, other});
    EXPECT_NEAR(matrix[0][1].item<double>(), 1, 1e-5) << width;
    EXPECT_LT(matrix[0][2].item<double>(), 0.9) << width;
    const at::Tensor a = (x - x.mean(0)).to(at::kDouble),
                     b = (other - other.mean(0)).to(at::kDouble);
    const double expected =
        (at::mm(a.t(), b).square().sum() / (at::mm(a.t(), a).norm() * at::mm(b.t(), b).norm()))
            .item<double>();
    EXPECT_NEAR(matrix[0][2].item<double>(), expected, 1e-5) << width;
  }
}

TEST(Similarity, OfNoVectorsIsNoNumber) {
  const at::Tensor matrix = cosine_matrix({random_rows(4, 2, 6), at::Tensor()});
  EXPECT_TRUE(std::isnan(matrix[0][1].item<double>()));
  EXPECT_EQ(cka_matrix({at::ones({4, 2}), random_rows(4, 2, 7)})[0][1].item<double>(), 0);
}

TEST(HeatMap, HasACellForEveryNumber) {
  const std::vector<double> values = {1, 0.25, std::nan(""), 1};
  const std::string svg = heat_map("Cosine", values, 2, 0, 1);
  EXPECT_THAT(svg, HasSubstr("<title>layers 0 and 1: 0.2500</title>"));
  EXPECT_THAT(svg, HasSubstr("layers 1 and 1: 1.0000"));
  EXPECT_THAT(svg, Not(HasSubstr("layers 1 and 0")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

class Analysis : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_synthetic_checkpoint(model_, {});
    tokens_.sequences = testing::random_ids(2, 50, 96, 1);
    tokens_.tokenizer_hash = "none";
  }
  testing::TemporaryDirectory directory_;
  std::filesystem::path model_ = directory_ / "model", out_ = directory_ / "out";
  TokenSet tokens_;
};

TEST_F(Analysis, WritesEveryMatrixAndItsPicture) {
  analyze(Checkpoint::open(model_), tokens_, {.num_tokens = 30, .conversion = {}}, out_, false);
  const Hdf5Reader file(out_ / "similarity.h5");
  for (const char* name :
       {"hidden_cosine", "key_cosine", "value_cosine", "hidden_cka", "key_cka", "value_cka"}) {
    const std::vector<double> values = file.doubles(std::string("/") + name, {4, 4});
    for (int layer = 0; layer < 4; ++layer) {
      EXPECT_NEAR(values[static_cast<std::size_t>(5 * layer)], 1, 1e-5) << name;
    }
    EXPECT_LT(std::abs(values[1]), 0.999) << name;
    EXPECT_THAT(read_file(out_ / (std::string(name) + ".svg"), 1 << 20), HasSubstr("</svg>"));
  }
  EXPECT_FALSE(file.contains("/latent_cosine"));
  const Json summary = analysis_summary(out_);
  EXPECT_EQ(summary.at("num_layers"), 4);
  EXPECT_EQ(summary.at("matrices").size(), 6u);
}

TEST_F(Analysis, RefusesWhatIsNoConversion) {
  EXPECT_THAT(error_of([&] {
                analyze(Checkpoint::open(model_), tokens_,
                        {.num_tokens = 30, .conversion = directory_ / "none"}, out_, false);
              }),
              HasSubstr("none"));
  EXPECT_FALSE(std::filesystem::exists(out_));
}

}  // namespace
}  // namespace kvc
