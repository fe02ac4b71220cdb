// Names and shapes of a checkpoint's tensors, as HuggingFace stores them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace kvc {

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

std::string layer_prefix(const ModelConfig& config, int layer);  // "model.layers.3."
std::string embedding_name(const ModelConfig& config);           // "model.embed_tokens.weight"
std::string head_name(const ModelConfig& config);                // "lm_head.weight"

// Place of a projection's weight: rows of a tensor [tensor_rows, hidden_size], all of them unless the
// architecture stores several projections in one tensor.
struct ProjectionRows {
  std::string tensor;
  std::int64_t tensor_rows = 0, first_row = 0, num_rows = 0;

  bool is_whole() const { return num_rows == tensor_rows; }
};
std::string bias_name(const ProjectionRows& rows);  // "...bias" of that tensor
ProjectionRows query_rows(const ModelConfig& config, int layer);
ProjectionRows key_rows(const ModelConfig& config, int layer);
ProjectionRows value_rows(const ModelConfig& config, int layer);
ProjectionRows gate_rows(const ModelConfig& config, int layer);  // of a gated MLP
ProjectionRows up_rows(const ModelConfig& config, int layer);

// A layer's other modules by role ("input_layernorm"); empty if the architecture has none.
struct ModuleNames {
  std::string_view input_norm, attention_output_norm, mlp_norm, mlp_output_norm, down_proj;
};
ModuleNames module_names(const ArchSpec& arch);

// The router, the experts and the shared experts of a layer that has them.
std::vector<NamedShape> expert_tensors(const ModelConfig& config, int layer);
// Every tensor of one layer, and of the whole model (lm_head only if not tied).
std::vector<NamedShape> layer_tensors(const ModelConfig& config, int layer);
std::vector<NamedShape> model_tensors(const ModelConfig& config);
std::int64_t num_parameters(const std::vector<NamedShape>& tensors);

}  // namespace kvc
