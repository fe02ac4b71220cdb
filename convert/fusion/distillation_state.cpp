#include "convert/fusion/distillation.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numbers>

#include "core/error.h"
#include "core/safetensors.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

// All tensors under the names they have in the file.
std::map<std::string, at::Tensor> tensors_of(const DistillationState& state) {
  std::map<std::string, at::Tensor> tensors;
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    tensors[fmt::format("parameter.{}", i)] = state.parameters[i].detach();
    tensors[fmt::format("best.{}", i)] = state.best[i];
    tensors[fmt::format("first.{}", i)] = state.optimizer.first[i];
    tensors[fmt::format("second.{}", i)] = state.optimizer.second[i];
  }
  return tensors;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

void save_state(const fs::path& path, const std::string& id, const DistillationState& state) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors_of(state)) {
    const at::Tensor data = tensor.contiguous();
    sources.push_back({name, Dtype::kF32, data.sizes().vec(), [data] { return bytes_of(data); }});
  }
  const at::Tensor numbers =
      at::tensor({static_cast<double>(state.step), static_cast<double>(state.best_step),
                  static_cast<double>(state.evaluations_since_best), state.first_kl, state.best_kl},
                 at::kDouble);
  sources.push_back({"numbers." + id, Dtype::kF64, {5}, [numbers] { return bytes_of(numbers); }});
  replace_safetensors(path, std::move(sources));
}

bool load_state(const fs::path& path, const std::string& id, DistillationState& state) {
  if (!fs::exists(path)) {
    return false;
  }
  const SafetensorsFile file = SafetensorsFile::open(path);
  const TensorInfo* info = file.find("numbers." + id);
  if (info == nullptr || info->shape != std::vector<std::int64_t>{5} ||
      info->dtype != Dtype::kF64) {
    return false;
  }
  const std::map<std::string, at::Tensor> tensors = tensors_of(state);
  for (const auto& [name, tensor] : tensors) {
    const TensorInfo* stored = file.find(name);
    if (stored == nullptr || stored->dtype != Dtype::kF32 ||
        stored->shape != tensor.sizes().vec()) {
      return false;
    }
  }
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = file.bytes(*file.find(name));
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  double numbers[5];
  std::memcpy(numbers, file.bytes(*info).data(), sizeof numbers);
  state.step = static_cast<std::int64_t>(numbers[0]);
  state.best_step = static_cast<std::int64_t>(numbers[1]);
  state.evaluations_since_best = static_cast<std::int64_t>(numbers[2]);
  state.first_kl = numbers[3];
  state.best_kl = numbers[4];
  return true;
}

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
