#include "convert/latent/merge_weights.h"

#include "core/error.h"

namespace kvc {

std::vector<double> merge_weights(const LatentGroup& group,
                                  const std::vector<double>& layer_scores) {
  const auto first = static_cast<std::size_t>(group.first_layer);
  const auto count = static_cast<std::size_t>(group.num_layers);
  KVC_CHECK(first + count <= layer_scores.size(), "merge weights: {} layer scores for layers to {}",
            layer_scores.size(), first + count - 1);
  double sum = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    KVC_CHECK(layer_scores[i] >= 0, "merge weights: layer {} has score {}", i, layer_scores[i]);
    sum += layer_scores[i];
  }
  std::vector<double> weights;
  for (std::size_t i = first; i < first + count; ++i) {
    weights.push_back(sum > 0 ? layer_scores[i] / sum : 1.0 / static_cast<double>(count));
  }
  return weights;
}

}  // namespace kvc
