#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/calibrate.h"
#include "core/error.h"
#include "core/hdf5.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using Rows = std::vector<std::vector<double>>;  // [num_tokens][2]

std::vector<double> cross(const Rows& a, const Rows& b) {
  std::vector<double> sum(4);
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t i = 0; i < 4; ++i) {
      sum[i] += a[t][i / 2] * b[t][i % 2];
    }
  }
  return sum;
}

std::vector<double> column_sums(const Rows& a) {
  std::vector<double> sum(2);
  for (const auto& row : a) {
    sum[0] += row[0];
    sum[1] += row[1];
  }
  return sum;
}

// The similarity of two layers whose keys are `a` and `b`, and whose values are `b` and `b`.
LayerSimilarity similarity_of(const Rows& a, const Rows& b, double key_cosine_sum) {
  const testing::TemporaryDirectory directory;
  Hdf5Writer file(directory / "c.h5");
  Provenance provenance;
  provenance.kind = "calibration";
  write_provenance(file, provenance);
  file.dataset("/num_tokens", std::vector<std::int64_t>{static_cast<std::int64_t>(a.size())}, {1});
  const Rows* keys[] = {&a, &b};
  for (int layer : {0, 1}) {
    const std::string group = "/layers/" + std::to_string(layer) + "/";
    file.dataset(group + "key_sum", column_sums(*keys[layer]), {2});
    file.dataset(group + "value_sum", column_sums(b), {2});
    file.dataset(group + "key_second_moment", cross(*keys[layer], *keys[layer]), {2, 2});
    file.dataset(group + "value_second_moment", cross(b, b), {2, 2});
  }
  file.dataset("/pairs/0/key_cross", cross(a, b), {2, 2});
  file.dataset("/pairs/0/value_cross", cross(b, b), {2, 2});
  file.dataset("/pairs/0/key_cosine_sum", std::vector<double>{key_cosine_sum}, {1});
  file.dataset("/pairs/0/value_cosine_sum", std::vector<double>{double(a.size())}, {1});
  file.close();
  return layer_similarity(directory / "c.h5", 2, 2).at(0);
}

// Centred columns a = (-1, 0, 1), (0, 0, 0) and b = (-1, 0, 1), (1, -2, 1): A^T B = [2 0; 0 0],
// A^T A = [2 0; 0 0], B^T B = [2 0; 0 6]: CKA = 4 / (2 * sqrt(40)).
TEST(LayerSimilarity, CkaOfThreeTokensByHand) {
  const Rows a = {{4, 7}, {5, 7}, {6, 7}}, b = {{-1, 1}, {0, -2}, {1, 1}};
  const LayerSimilarity similarity = similarity_of(a, b, 1.5);
  EXPECT_NEAR(similarity.key_cka, 2 / std::sqrt(40.0), 1e-12);
  EXPECT_NEAR(similarity.value_cka, 1, 1e-12);
  EXPECT_NEAR(similarity.key_cosine, 0.5, 1e-12);
  EXPECT_NEAR(similarity.value_cosine, 1, 1e-12);
}

TEST(LayerSimilarity, CkaIgnoresRotationScaleAndShift) {
  const Rows a = {{1, 2}, {3, -1}, {0, 5}, {2, 2}};
  Rows b;
  for (const auto& row : a) {  // rotated by 90 degrees, tripled, shifted
    b.push_back({-3 * row[1] + 10, 3 * row[0] - 4});
  }
  EXPECT_NEAR(similarity_of(a, b, 0).key_cka, 1, 1e-12);
}

TEST(LayerSimilarity, ConstantLayersHaveNoSimilarity) {
  EXPECT_EQ(similarity_of({{1, 1}, {1, 1}}, {{1, 2}, {3, 4}}, 0).key_cka, 0);
}

}  // namespace
}  // namespace kvc
