#include "convert/coded/block_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "convert/coded/block_basis.h"
#include "convert/run_statistics.h"
#include "model/coefficient_codes.h"
#include "model/key_bases.h"
#include "model/tensor_memory.h"

namespace kvc {
namespace {

constexpr std::int64_t kMemoryBytes = std::int64_t{1} << 26;  // larger tensors of a block spill
// What E and F in 8 bits may make of the error of a block.
// Text of another kind than the calibration's, with larger coefficients, makes several times as much of it.
constexpr double kMostGrowth = 1.002;
constexpr double kMostAddedToWide = 0.005;            // likewise each of E and F, of wider blocks
constexpr std::int64_t kWideSteps = 8;                // shares of columns in 16 bits that are tried
constexpr std::int64_t kFittedParts = 3, kParts = 4;  // of the samples, the others are held out

at::Tensor stored(const at::Tensor& tensor, const std::filesystem::path& directory) {
  return make_scratch_tensor(tensor.sizes().vec(), at::kFloat, directory, kMemoryBytes)
      .copy_(tensor);
}

}  // namespace

BlockFit::BlockFit(const ConversionJob& job, const RunStatistics& statistics, const LayerRun& run,
                   const CodedBlock& block, const RunSamples& samples)
    : block_(block), device_(job.device) {
  const RunStatistics own = block_statistics(statistics, run, block, job.config);
  const BlockBasis basis = block_basis(own, block, job.config, job.device);
  encoder_ = stored(basis.encoder, job.directory);
  decoder_ = stored(basis.decoder, job.directory);
  mean_ = basis.mean.to(at::kFloat);
  channels_ = key_basis_channels(job.config, block.first_layer, block.bases);
  const at::Tensor channels = at::tensor(channels_in_run(block, run, job.config), at::kLong);
  at::Tensor centred = samples.tokens.index_select(1, channels).sub_(mean_);
  if (samples.first.defined()) {
    first_ = samples.first.index_select(0, channels);
  }
  if (block.rotated) {
    centred = turned_samples(centred, block, job.config);
  }
  const at::Tensor coefficients = stored(at::mm(encoder_, centred.t()), job.directory);
  const std::int64_t num_fitted =
      std::max<std::int64_t>(1, coefficients.size(1) * kFittedParts / kParts);
  fitted_ = coefficients.narrow(1, 0, num_fitted);
  held_out_ = coefficients.narrow(1, num_fitted, coefficients.size(1) - num_fitted);
  curves_ =
      measure_widths(fitted_.to(device_), widths_of(job.settings.own<CodedSettings>().widths));
}

void BlockFit::set_bits(const std::vector<int>& bits) {
  order_.resize(bits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto bits_of = [&](std::int64_t i) { return bits[static_cast<std::size_t>(i)]; };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::int64_t a, std::int64_t b) { return bits_of(a) > bits_of(b); });
  bits_.clear();
  block_.coefficients = {};
  for (const std::int64_t i : order_) {
    bits_.push_back(bits_of(i));
    if (bits_of(i) > 0) {
      ++block_.coefficients[static_cast<std::size_t>(bits_of(i))];
    }
  }
}

at::Tensor BlockFit::at_widths(const at::Tensor& of_width) const {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < block_.num_coefficients(); ++i) {
    const int bits = bits_[static_cast<std::size_t>(i)];
    rows.push_back(std::find(curves_.widths.begin(), curves_.widths.end(), bits) -
                   curves_.widths.begin());
  }
  return of_width.index({at::tensor(rows, at::kLong), kept()});
}

at::Tensor BlockFit::kept() const {
  return at::tensor(order_, at::kLong).narrow(0, 0, block_.num_coefficients());
}

at::Tensor BlockFit::steps() const { return at_widths(curves_.steps); }

double BlockFit::error_growth(const BasisCodes& codes) const {
  const at::Tensor noise = at_widths(curves_.distortions), variances = curves_.distortions[0];
  const BasisTransform stored = decode_basis(codes, block_.num_coefficients(), name_of(block_));
  // In the block's own coordinates, where the metric is the identity.
  const at::Tensor decoder = at::mm(encoder_.to(at::kDouble), stored.decoder / unit());
  const at::Tensor encoder = at::mm(stored.encoder * unit(), decoder_.to(at::kDouble));
  const at::Tensor lost = at::eye(variances.size(0), at::kDouble) - at::mm(decoder, encoder);
  const double coded = (lost.square().sum(0) * variances).sum().item<double>() +
                       (decoder.square().sum(0) * noise).sum().item<double>();
  const double exact = expected_error();
  return exact > 0 ? coded / exact : std::numeric_limits<double>::infinity();
}

double BlockFit::expected_error() const {
  const at::Tensor& variances = curves_.distortions[0];
  const at::Tensor dropped = variances.sum() - variances.index_select(0, kept()).sum();
  return (dropped + at_widths(curves_.distortions).sum()).item<double>();
}

BasisNoise BlockFit::noise_of(const BasisTransform& transform) const {
  const at::Tensor& variances = curves_.distortions[0];
  const at::Tensor e_noise = rounding_of(transform.encoder, CoefficientAxis::kRows) * unit();
  const at::Tensor d_noise = rounding_of(transform.decoder, CoefficientAxis::kColumns) / unit();
  // In the block's own coordinates, where the metric is the identity and coefficients are uncorrelated.
  const at::Tensor of_coefficients = at::mm(e_noise, decoder_).square_().to(at::kDouble);
  const at::Tensor in_metric = at::mm(encoder_, d_noise).square_();
  return {at::mv(of_coefficients, variances),
          in_metric.sum(0, false, at::kDouble) * variances.index_select(0, kept())};
}

double BlockFit::error_on(const at::Tensor& coefficients, bool gain) const {
  const std::int64_t kept = block_.num_coefficients();
  const at::Tensor ordered =
      coefficients.index_select(0, at::tensor(order_, at::kLong)).to(device_);
  const double dropped =
      ordered.narrow(0, kept, ordered.size(0) - kept).square().sum(0).mean().item<double>();
  return dropped + coding_error(ordered.narrow(0, 0, kept), {bits_.begin(), bits_.begin() + kept},
                                steps(), gain);
}

double BlockFit::fitted_error(bool gain) const { return error_on(fitted_, gain); }

CodedReport BlockFit::report() const {
  CodedReport report;
  report.first_layer = block_.first_layer;
  report.num_layers = block_.num_layers;
  report.head = block_.head;
  report.coefficients = block_.num_coefficients();
  report.bits = block_.bits();
  report.gain = block_.gain;
  report.energy = curves_.distortions[0].sum().item<double>();
  report.predicted_error = fitted_error(block_.gain);
  report.measured_error = held_out_.size(1) > 0 ? error_on(held_out_, block_.gain) : 0;
  return report;
}

// A metric has its own scale; in 16-bit numbers the first coefficient's deviation should be about 1. A power
// of two changes no other bit.
double BlockFit::unit() const {
  const double variance = curves_.distortions[0].max().item<double>();
  return variance > 0 ? std::exp2(std::round(0.5 * std::log2(variance))) : 1;
}

std::optional<BasisCodes> BlockFit::basis_codes(const BasisTransform& transform) const {
  const std::int64_t k = block_.num_coefficients();
  if (k == 0) {
    return std::nullopt;
  }
  const BalancedBasis basis = balanced_basis(transform);
  for (std::int64_t step = 0; step <= kWideSteps; ++step) {
    BasisCodes codes = code_basis(basis, k * step / kWideSteps);
    if (error_growth(codes) <= kMostGrowth) {
      return codes;
    }
  }
  return std::nullopt;
}

NamedTensors BlockFit::tensors() const {
  const BasisTransform transform{encoder_.index_select(0, kept()) / unit(),
                                 (decoder_.index_select(1, kept()) * unit()).contiguous()};
  NamedTensors tensors = {{"mean", mean_}, {"steps", (steps() / unit()).to(at::kFloat)}};
  if (first_.defined()) {
    tensors.emplace_back("first", first_);
  }
  if (block_.bases > 1) {
    const SplitTransform split = split_bases(transform, channels_);
    tensors.emplace_back("encoder", split.transform.encoder);
    tensors.emplace_back("decoder", split.transform.decoder);
    tensors.emplace_back("basis", split.basis);
    return tensors;
  }
  tensors.emplace_back("encoder", transform.encoder);
  tensors.emplace_back("decoder", transform.decoder);
  if (mean_.size(0) > kMostCodedBasisChannels) {
    const PairChoice choice = choose_pair(noise_of(transform), block_.num_coefficients(),
                                          kMostAddedToWide / kMostAddedError * expected_error());
    add_choice(tensors, "encoder", choice.encoder);
    add_choice(tensors, "decoder", choice.decoder);
  } else if (const std::optional<BasisCodes> codes = basis_codes(transform)) {
    const auto named = codes->named();
    tensors.insert(tensors.end(), named.begin(), named.end());
  }
  return tensors;
}

RunStatistics block_statistics(const RunStatistics& statistics, const LayerRun& run,
                               const CodedBlock& block, const ModelConfig& config) {
  const std::int64_t n = num_channels(block, config), part_width = n / block.num_parts();
  const at::Tensor index = at::tensor(channels_in_run(block, run, config), at::kLong);
  RunStatistics own{statistics.num_tokens, statistics.mean.index_select(0, index),
                    submatrix(statistics.covariance, index), at::eye(n, at::kDouble)};
  if (!statistics.metric.defined()) {
    return own;
  }
  at::Tensor metric = submatrix(statistics.metric, index);
  if (block.num_layers == 1 && block.part == CodedParts::kBoth) {
    metric.narrow(0, 0, part_width).narrow(1, part_width, part_width).zero_();
    metric.narrow(0, part_width, part_width).narrow(1, 0, part_width).zero_();
  }
  own.metric = damped_cache_metric(std::move(metric), part_width);
  return own;
}

void check_calibration_tokens(const RunStatistics& statistics, const CodedBlock& block,
                              const ModelConfig& config) {
  const std::int64_t least = least_calibration_tokens(block, config);
  KVC_CHECK(statistics.num_tokens >= least,
            "{}: the covariance of its {} channels was measured on {} tokens, expected at least "
            "{}; calibrate with more text, or use a smaller --scope or --group",
            name_of(block), num_channels(block, config), statistics.num_tokens, least);
}

}  // namespace kvc
