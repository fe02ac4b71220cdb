#include "convert/factor_choice.h"

#include <algorithm>
#include <map>

#include "model/coefficient_codes.h"
#include "model/factor_specs.h"

namespace kvc {
namespace {

// [columns] float64
at::Tensor column_energy(const at::Tensor& matrix) {
  return matrix.to(at::kDouble).square_().sum(0);
}

// Squared errors of one layer's keys, or values.
struct PartErrors {
  at::Tensor own, encoder, decoder;  // [], [k], [k] float64
};

}  // namespace

WideCoefficients wide_coefficients(const at::Tensor& added, const at::Tensor& error) {
  // What coefficient i and all after it add.
  const at::Tensor rest = added.flip(1).cumsum(1).flip(1);
  const at::Tensor fits =
      (rest <= kMostAddedError * error.unsqueeze(1)).all(0).to(at::kCPU, at::kLong);
  const std::int64_t count = fits.sum().item<std::int64_t>();
  return count == 0 ? std::nullopt : WideCoefficients(added.size(1) - count);
}

WideCoefficients both(const WideCoefficients& a, const WideCoefficients& b) {
  return a && b ? WideCoefficients(std::max(*a, *b)) : std::nullopt;
}

PairChoice choose_pair(const at::Tensor& encoder, const at::Tensor& decoder,
                       const std::vector<LayerSample>& layers) {
  const at::Tensor e = encoder.to(at::kFloat), d = decoder.to(at::kFloat);
  const at::Tensor e_noise = rounding_of(e, CoefficientAxis::kRows);
  const at::Tensor d_noise = rounding_of(d, CoefficientAxis::kColumns);
  std::map<std::int64_t, PartErrors> parts;  // by first row
  for (const LayerSample& layer : layers) {
    const at::Tensor latents = at::mm(layer.inputs, e.t());
    const at::Tensor latent_energy = column_energy(latents);
    const at::Tensor noise_energy = column_energy(at::mm(layer.inputs, e_noise.t()));
    std::int64_t row = layer.first_row;
    for (const at::Tensor& y : {layer.keys, layer.values}) {
      if (!y.defined()) {
        continue;
      }
      const auto [part, is_new] = parts.try_emplace(row);
      PartErrors& sum = part->second;
      if (is_new) {
        sum = {at::zeros({}, at::kDouble), at::zeros_like(latent_energy),
               at::zeros_like(latent_energy)};
      }
      const at::Tensor rows = d.narrow(0, row, y.size(1));
      sum.own += (y - at::mm(latents, rows.t())).to(at::kDouble).square_().sum();
      sum.encoder += noise_energy * column_energy(rows);
      sum.decoder += latent_energy * column_energy(d_noise.narrow(0, row, y.size(1)));
      row += y.size(1);
    }
  }
  std::vector<at::Tensor> own, of_encoder, of_decoder;
  for (const auto& [row, sum] : parts) {
    own.push_back(sum.own);
    of_encoder.push_back(sum.encoder);
    of_decoder.push_back(sum.decoder);
  }
  const at::Tensor error = at::stack(own);
  return {wide_coefficients(at::stack(of_encoder), error),
          wide_coefficients(at::stack(of_decoder), error)};
}

BasisNoise basis_noise(const at::Tensor& encoder, const at::Tensor& decoder,
                       const at::Tensor& eigenvalues, const at::Tensor& covariance,
                       const at::Tensor& metric, at::Device device) {
  const auto placed = [device](const at::Tensor& matrix) { return matrix.to(device, at::kFloat); };
  const at::Tensor e_noise = rounding_of(placed(encoder), CoefficientAxis::kRows);
  const at::Tensor d_noise = rounding_of(placed(decoder), CoefficientAxis::kColumns);
  // F^T M F = I: an error of a coefficient is one of the same size in the metric.
  const at::Tensor from_inputs = at::mm(e_noise, placed(covariance)).mul_(e_noise);
  const at::Tensor in_metric =
      (metric.defined() ? at::mm(placed(metric), d_noise) : d_noise) * d_noise;
  return {from_inputs.sum(1, false, at::kDouble).cpu(),
          in_metric.sum(0, false, at::kDouble).cpu() * eigenvalues};
}

PairChoice choose_pair(const BasisNoise& noise, std::int64_t rank, double error) {
  const at::Tensor own = at::full({1}, error, at::kDouble);
  const auto choose = [&](const at::Tensor& added) {
    return wide_coefficients(added.narrow(0, 0, rank).unsqueeze(0), own);
  };
  return {choose(noise.encoder), choose(noise.decoder)};
}

void add_choice(NamedTensors& tensors, const std::string& matrix, const WideCoefficients& wide) {
  if (wide) {
    tensors.emplace_back(choice_name(matrix), at::full({1}, *wide, at::kLong));
  }
}

}  // namespace kvc
