// The state from which a distillation resumes, as a file.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "convert/fusion/adamw.h"

namespace kvc {

struct DistillationState {
  std::int64_t step = 0, best_step = 0, evaluations_since_best = 0;
  double first_kl = 0, best_kl = 0;
  std::vector<at::Tensor> parameters, best;  // float32
  AdamW optimizer;
};

// Writes the file anew; it is complete at any time. `id` names what the state belongs to.
void save_state(const std::filesystem::path& path, const std::string& id,
                const DistillationState& state);
// False if there is no such file, or it has another id. `state` already has the parameters' shapes.
bool load_state(const std::filesystem::path& path, const std::string& id, DistillationState& state);

}  // namespace kvc
