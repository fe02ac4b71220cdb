// Names and shapes of a checkpoint's tensors, as HuggingFace stores them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace kvc {

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

std::string layer_prefix(int layer);  // "model.layers.3."
// Every tensor of one layer, and of the whole model (lm_head only when it is not tied).
std::vector<NamedShape> layer_tensors(const ModelConfig& config, int layer);
std::vector<NamedShape> model_tensors(const ModelConfig& config);

}  // namespace kvc
