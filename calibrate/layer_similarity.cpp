#include <ATen/ATen.h>

#include "calibrate/calibrate.h"
#include "core/error.h"
#include "core/hdf5.h"

namespace kvc {
namespace {

// One layer's keys or values with the means removed: their sum and the norm of their scatter
// matrix.
struct Scatter {
  at::Tensor sum;
  double norm = 0;
};

class SumsReader {
 public:
  SumsReader(const std::filesystem::path& path, std::int64_t kv_dim)
      : file_(path), kv_dim_(kv_dim) {
    KVC_CHECK(read_provenance(file_).kind == "calibration", "{}: not a calibration", path.string());
    num_tokens_ = static_cast<double>(file_.ints("/num_tokens", {1}).front());
    KVC_CHECK(num_tokens_ > 0, "{}: no tokens", path.string());
  }

  Scatter scatter(int layer, const std::string& which) const {
    const std::string group = fmt::format("/layers/{}/{}_", layer, which);
    const at::Tensor sum = read(group + "sum", {kv_dim_});
    return {sum, centred(group + "second_moment", sum, sum).norm().item<double>()};
  }

  // ||A^T B||^2 / (||A^T A|| ||B^T B||); 0 where one of the layers is constant.
  double cka(int layer, const std::string& which, const Scatter& a, const Scatter& b) const {
    const at::Tensor cross = centred(fmt::format("/pairs/{}/{}_cross", layer, which), a.sum, b.sum);
    const double norms = a.norm * b.norm;
    return norms > 0 ? cross.square().sum().item<double>() / norms : 0.0;
  }

  double cosine(int layer, const std::string& which) const {
    const auto sum = file_.doubles(fmt::format("/pairs/{}/{}_cosine_sum", layer, which), {1});
    return sum.front() / num_tokens_;
  }

 private:
  at::Tensor read(const std::string& path, const std::vector<std::int64_t>& shape) const {
    return at::tensor(at::ArrayRef<double>(file_.doubles(path, shape))).view(shape);
  }
  // sum a b^T - (sum a)(sum b)^T / num_tokens: the same sum with both means removed.
  at::Tensor centred(const std::string& path, const at::Tensor& a, const at::Tensor& b) const {
    return read(path, {kv_dim_, kv_dim_}).sub_(a.outer(b), 1 / num_tokens_);
  }

  Hdf5Reader file_;
  std::int64_t kv_dim_;
  double num_tokens_ = 0;
};

}  // namespace

std::vector<LayerSimilarity> layer_similarity(const std::filesystem::path& calibration,
                                              int num_layers, std::int64_t kv_dim) {
  const SumsReader sums(calibration, kv_dim);
  std::vector<LayerSimilarity> similarity;
  Scatter key = sums.scatter(0, "key"), value = sums.scatter(0, "value");
  for (int layer = 0; layer + 1 < num_layers; ++layer) {
    Scatter next_key = sums.scatter(layer + 1, "key");
    Scatter next_value = sums.scatter(layer + 1, "value");
    similarity.push_back({.key_cosine = sums.cosine(layer, "key"),
                          .value_cosine = sums.cosine(layer, "value"),
                          .key_cka = sums.cka(layer, "key", key, next_key),
                          .value_cka = sums.cka(layer, "value", value, next_value)});
    key = std::move(next_key);
    value = std::move(next_value);
  }
  return similarity;
}

Json calibration_summary(const std::filesystem::path& calibration) {
  const Hdf5Reader file(calibration);
  const int num_layers = static_cast<int>(file.children("/layers").size());
  const std::vector<std::int64_t> shape = file.shape("/layers/0/key_sum");
  KVC_CHECK(shape.size() == 1, "{}:/layers/0/key_sum: expected one axis", calibration.string());
  Json similarity = Json::array();
  for (const LayerSimilarity& pair : layer_similarity(calibration, num_layers, shape.front())) {
    const int layer = static_cast<int>(similarity.size());
    similarity.push_back({{"layer", layer},
                          {"next_layer", layer + 1},
                          {"key_cosine", pair.key_cosine},
                          {"value_cosine", pair.value_cosine},
                          {"key_cka", pair.key_cka},
                          {"value_cka", pair.value_cka}});
  }
  return {{"num_tokens", file.ints("/num_tokens", {1}).front()},
          {"num_layers", num_layers},
          {"similarity", similarity}};
}

}  // namespace kvc
