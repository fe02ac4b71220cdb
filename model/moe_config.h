// Mixture-of-experts settings of a config.json as plain numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace kvc {

// The spelling of settings and tensors that a family with experts follows.
enum class ExpertStyle {
  kNone,     // dense MLPs only
  kMixtral,  // num_local_experts; block_sparse_moe.experts.<e>.w1, w3, w2
  kQwen,     // num_experts, mlp_only_layers, decoder_sparse_step; mlp.experts.<e>.gate_proj, ...
  kQwen2,    // the same, and one expert that every token passes, behind a sigmoid gate
  kDeepseek  // n_routed_experts, first_k_dense_replace, groups of experts; shared experts
};

struct MoeConfig {
  ExpertStyle style = ExpertStyle::kNone;
  std::int64_t num_experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t expert_size = 0;       // intermediate size of one routed expert
  std::int64_t shared_size = 0;       // total size of the experts that every token passes; 0: none
  bool shared_gate = false;           // their output is multiplied by a sigmoid of the input
  bool normalize = false;             // the chosen experts' probabilities are divided by their sum
  bool float_router = false;          // the router's product is taken in float32
  double routed_scale = 1;            // multiplies the chosen probabilities
  std::int64_t num_groups = 1;        // the experts are chosen from the best groups_per_token of
  std::int64_t groups_per_token = 1;  // num_groups groups of adjacent experts
  std::vector<bool> layers;           // [num_layers]: whether the layer has experts
  bool stacked = false;               // the files store all experts of a layer in one tensor

  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

}  // namespace kvc
