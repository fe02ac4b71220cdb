#include "convert/fusion/adamw.h"

#include <cmath>
#include <numbers>

namespace kvc {

AdamW AdamW::of(const std::vector<at::Tensor>& parameters) {
  AdamW state;
  for (const at::Tensor& parameter : parameters) {
    state.first.push_back(at::zeros_like(parameter));
    state.second.push_back(at::zeros_like(parameter));
  }
  return state;
}

void AdamW::update(const std::vector<at::Tensor>& parameters,
                   const std::vector<at::Tensor>& gradients, const std::vector<double>& rates,
                   std::int64_t step) {
  const double of_first = 1 - std::pow(kBeta1, step), of_second = 1 - std::pow(kBeta2, step);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    first[i].mul_(kBeta1).add_(gradients[i], 1 - kBeta1);
    second[i].mul_(kBeta2).addcmul_(gradients[i], gradients[i], 1 - kBeta2);
    parameters[i].addcdiv_(first[i], (second[i] / of_second).sqrt_().add_(kEpsilon),
                           -rates[i] / of_first);
  }
}

double cosine_rate(double highest, std::int64_t step, std::int64_t steps) {
  return highest * 0.5 *
         (1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(steps)));
}

}  // namespace kvc
