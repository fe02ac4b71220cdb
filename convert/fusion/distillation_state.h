// The state from which a distillation resumes, as a file.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvc {

// AdamW (Loshchilov and Hutter) over a few tensors, without weight decay, which has no place in factors that
// are to stay near one another's sum, nor in weights that are to stay near those that they begin as.
struct AdamW {
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8;

  std::vector<at::Tensor> first, second;  // moments of the gradients, like the parameters

  static AdamW of(const std::vector<at::Tensor>& parameters);
  // Moves the parameters in place, each at its rate; `step` counts from 1.
  void update(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
              const std::vector<double>& rates, std::int64_t step);
};

// Half a cosine from `highest` at step 0 to 0 at `steps`.
double cosine_rate(double highest, std::int64_t step, std::int64_t steps);

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
