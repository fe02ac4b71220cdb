// One coded block during a conversion: its coordinates, and samples in them.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "convert/coded/block_layout.h"
#include "convert/coded/quantiser.h"
#include "convert/factor_choice.h"
#include "convert/run_statistics.h"
#include "model/basis_codes.h"

namespace kvc {

// y of a run's layers, float32.
struct RunSamples {
  at::Tensor tokens;  // [num_tokens, n of the run]
  at::Tensor
      first;  // [n of the run], mean of the texts' first tokens; undefined: these are among the others
};

// All blocks of the model are in memory together, so large parts are on disk.
class BlockFit {
 public:
  // `samples`: of the run that holds the block.
  BlockFit(const ConversionJob& job, const RunStatistics& statistics, const LayerRun& run,
           const CodedBlock& block, const RunSamples& samples);

  const CodedBlock& block() const { return block_; }
  const WidthCurves& curves() const { return curves_; }

  // Orders the coefficients by falling width; `bits` [n] in the order of the curves.
  void set_bits(const std::vector<int>& bits);
  void set_gain(bool gain) { block_.gain = gain; }
  // Mean error per token with the current bits, on the samples that chose the steps. With or without
  // gain, or with the block's setting.
  double fitted_error(bool gain) const;
  CodedReport report() const;
  // As core/conversion_file.h says, float32. Also the codes of E and F (model/basis_codes.h) if they leave the
  // error unchanged.
  // (convert/factor_choice.h says the same of wider blocks.)
  NamedTensors tensors() const;

 private:
  double error_on(const at::Tensor& coefficients, bool gain) const;
  // Expected error_on() with E and F of `codes`, over that with the exact ones.
  double error_growth(const BasisCodes& codes) const;
  // With as few wide columns as that allows; none if impossible. Not for wide blocks.
  std::optional<BasisCodes> basis_codes(const BasisTransform& transform) const;
  // What E and F of a wide block add with 8 bits.
  BasisNoise noise_of(const BasisTransform& transform) const;
  // Expected error_on(), of exact E and F.
  double expected_error() const;
  double unit() const;
  // Entries of the kept coefficients at their widths in a table [num_widths, n]. [k]
  at::Tensor at_widths(const at::Tensor& of_width) const;
  at::Tensor steps() const;  // [k] float64, of the kept coefficients
  at::Tensor kept() const;   // [k] int64, their indices

  CodedBlock block_;
  at::Device device_;                    // of measuring
  at::Tensor encoder_, decoder_, mean_;  // [n, n], [n, n], [n] float32, rows by falling variance
  at::Tensor first_;                     // [n] float32, of first tokens; undefined: as the mean
  at::Tensor channels_;                  // [bases, n / bases] int64, of each basis
  at::Tensor fitted_, held_out_;         // [n, num_tokens] float32
  WidthCurves curves_;
  std::vector<std::int64_t> order_;  // [n] coefficients by falling width
  std::vector<int> bits_;            // [n], in that order
};

// What calibration measured of a coded block. `statistics` are those of `run`, which holds it; the metric is damped, the
// identity where there is none. A block of one layer has no terms between keys and values.
RunStatistics block_statistics(const RunStatistics& statistics, const LayerRun& run,
                               const CodedBlock& block, const ModelConfig& config);
// Error if there are fewer than four tokens per channel of the block.
void check_calibration_tokens(const RunStatistics& statistics, const CodedBlock& block,
                              const ModelConfig& config);

}  // namespace kvc
