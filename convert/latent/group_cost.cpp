#include "convert/latent/group_cost.h"

#include <algorithm>

#include "core/kv_plan.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kFloatBytes = 4;  // float32
constexpr std::int64_t kDoubleBytes = 8;

// Parameters of a group's layers, experts included.
std::int64_t weights_of(const ModelConfig& config, const LatentGroup& group) {
  std::int64_t parameters = 0;
  for (int layer = group.first_layer; layer < group.first_layer + group.num_layers; ++layer) {
    parameters += num_parameters(layer_tensors(config, layer));
  }
  return parameters;
}

}  // namespace

std::int64_t peak_memory(const ModelConfig& config, const KvPlan& plan) {
  std::int64_t peak = 0;
  for (const LatentGroup& group : plan.groups) {
    const std::int64_t rows = group.num_layers * grouped_widths(plan).total();
    const std::int64_t n = std::min(config.hidden_size, rows);
    const std::int64_t factorisation = kDoubleBytes * (2 * rows * config.hidden_size + 6 * n * n +
                                                       config.hidden_size * config.hidden_size);
    const std::int64_t fit = kDoubleBytes * group.rank * (4 * rows + 2 * group.rank) +
                             kFloatBytes * weights_of(config, group);
    peak = std::max({peak, factorisation, fit});
  }
  constexpr std::int64_t kBase = std::int64_t{3} << 29;  // libraries, boundary, activations
  return peak + kBase;
}

double factorisation_seconds(const ModelConfig& config, const ConvertSettings& settings,
                             const KvPlan& plan) {
  constexpr double kEigen = 3.5e-11, kProduct = 1.1e-11;
  double seconds = 0;
  for (const LatentGroup& group : plan.groups) {
    const auto h = static_cast<double>(config.hidden_size);
    const auto rows = static_cast<double>(group.num_layers * grouped_widths(plan).total());
    const auto rank = static_cast<double>(group.rank);
    const double n = std::min(h, rows);
    const double whitening = settings.factor == Factor::kWhitened ? 2 * rows * h * h : 0;
    seconds += kEigen * n * n * n + kProduct * (rows * h * n + 6 * rows * h * rank + whitening);
  }
  return seconds;
}

}  // namespace kvc
