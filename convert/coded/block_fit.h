// One coded block on its way through a conversion: its coordinates, and samples in them.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>

#include "convert/coded/block_layout.h"
#include "convert/coded/block_statistics.h"
#include "convert/coded/quantiser.h"

namespace kvc {

// Memory is that of the whole model's blocks together; what is large lies on disk.
class BlockFit {
 public:
  // `samples` [num_tokens, n of the run] float32: y of the run that holds the block.
  BlockFit(const ConversionJob& job, const RunStatistics& statistics, const LayerRun& run,
           const CodedBlock& block, const at::Tensor& samples);

  const CodedBlock& block() const { return block_; }
  const WidthCurves& curves() const { return curves_; }

  // Orders the coefficients by falling width; `bits` [n] in the order of the curves.
  void set_bits(const std::vector<int>& bits);
  void set_gain(bool gain) { block_.gain = gain; }
  // Mean error per token with the bits that are set, on the samples the steps were chosen for. With or
  // without gain, or as the block says.
  double fitted_error(bool gain) const;
  CodedReport report() const;
  // encoder [k, n], decoder [n, k], mean [n], steps [k]; float32
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;

 private:
  double error_on(const at::Tensor& coefficients, bool gain) const;
  double unit() const;
  at::Tensor steps() const;  // [k] float64, of the kept coefficients

  CodedBlock block_;
  at::Tensor encoder_, decoder_, mean_;  // [n, n], [n, n], [n] float32, rows by falling variance
  at::Tensor fitted_, held_out_;         // [n, num_tokens] float32
  WidthCurves curves_;
  std::vector<std::int64_t> order_;  // [n] coefficients by falling width
  std::vector<int> bits_;            // [n], in that order
};

}  // namespace kvc
