// Tensors of a checkpoint that no part of the configured text model uses, by place.
#pragma once

#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "model/config.h"

namespace kvc {

struct UnusedTensors {
  // Inside the text model (a decoder layer, the embedding, the final norm, the output matrix): the
  // checkpoint computes something that the configured architecture does not.
  std::vector<std::string> foreign;
  // Beside it: vision towers, projectors, layers behind the last one. They are exported unchanged.
  std::vector<std::string> carried;
};

// Leaves out what a text model may hold twice: rotary buffers, a tied output matrix.
UnusedTensors unused_tensors(const Checkpoint& checkpoint, const ModelConfig& config);

// Up to a dozen names, and how many more there are.
std::string listed(const std::vector<std::string>& names);

}  // namespace kvc
