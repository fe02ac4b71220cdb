// Tensors of a checkpoint that the configured text model does not use, by place.
#pragma once

#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "model/config.h"

namespace kvc {

struct UnusedTensors {
  // Inside the text model (a decoder layer, the embedding, the final norm, the output matrix): the
  // checkpoint computes something else than the configured architecture.
  std::vector<std::string> foreign;
  // Outside it: vision towers, projectors, layers behind the last one. They are exported unchanged.
  std::vector<std::string> carried;
};

// Skips tensors that a text model may store twice: rotary buffers, a tied output matrix.
UnusedTensors unused_tensors(const Checkpoint& checkpoint, const ModelConfig& config);

// Up to a dozen names, and the number of others.
std::string listed(const std::vector<std::string>& names);

}  // namespace kvc
