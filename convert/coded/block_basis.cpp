#include "convert/coded/block_basis.h"

#include <cmath>

#include "model/fused_kv.h"
#include "model/key_bases.h"

namespace kvc {
namespace {

// A rotary pair's mean that would cost its two codes fewer bits than this is left to them: the mean of others takes two
// products for each token and query head.
constexpr double kLeastMeanBits = 0.05;

// Rows of E and columns of F by falling variance. variances [n]
BlockBasis sorted(const at::Tensor& encoder, const at::Tensor& decoder, const at::Tensor& variances,
                  at::Tensor mean) {
  const at::Tensor order = variances.argsort(/*stable=*/true, 0, /*descending=*/true);
  return {encoder.index_select(0, order).contiguous(), decoder.index_select(1, order).contiguous(),
          std::move(mean), variances.index_select(0, order)};
}

BlockBasis several_bases(const RunStatistics& statistics, const at::Tensor& channels,
                         at::Device device) {
  const std::int64_t n = statistics.mean.size(0), width = channels.size(1);
  at::Tensor encoder = at::zeros({n, n}, at::kDouble), decoder = at::zeros_like(encoder);
  std::vector<at::Tensor> variances;
  for (std::int64_t i = 0; i < channels.size(0); ++i) {
    const at::Tensor own = channels[i];
    const PrincipalBasis basis = principal_basis(submatrix(statistics.covariance, own),
                                                 submatrix(statistics.metric, own), width, device);
    encoder.narrow(0, i * width, width).index_copy_(1, own, basis.encoder);
    decoder.narrow(1, i * width, width).index_copy_(0, own, basis.decoder);
    variances.push_back(basis.eigenvalues);
  }
  return sorted(encoder, decoder, at::cat(variances), statistics.mean);
}

// The mean of both channels of each pair that RoPE turns; others keep theirs. numbers [n]
at::Tensor pair_means(const at::Tensor& numbers, const ChannelPairs& pairs) {
  const at::Tensor first = pairs.first.narrow(0, 0, pairs.num_turned);
  const at::Tensor second = pairs.second.narrow(0, 0, pairs.num_turned);
  const at::Tensor mean =
      (numbers.index_select(0, first) + numbers.index_select(0, second)).mul_(0.5);
  return numbers.index_copy(0, first, mean).index_copy(0, second, mean);
}

BlockBasis single_channels(const RunStatistics& statistics, const ChannelPairs& pairs) {
  const at::Tensor scale = pair_means(statistics.metric.diagonal(), pairs).sqrt();
  const at::Tensor spread = pair_means(statistics.covariance.diagonal(), pairs);
  const at::Tensor squared_mean = pair_means(statistics.mean.square(), pairs);
  const at::Tensor apart = at::log2(1 + squared_mean / spread.clamp_min(1e-30)) > kLeastMeanBits;
  const at::Tensor mean = at::where(apart, statistics.mean, at::zeros_like(statistics.mean));
  const at::Tensor variance = at::where(apart, spread, spread + squared_mean);
  return sorted(at::diag(scale), at::diag(scale.reciprocal()), variance * scale.square(), mean);
}

}  // namespace

BlockBasis block_basis(const RunStatistics& statistics, const CodedBlock& block,
                       const ModelConfig& config, at::Device device) {
  if (block.rotated) {
    return single_channels(statistics, channel_pairs(config, block.first_layer));
  }
  if (block.bases > 1) {
    return several_bases(statistics, key_basis_channels(config, block.first_layer, block.bases),
                         device);
  }
  PrincipalBasis basis =
      principal_basis(statistics.covariance, statistics.metric, statistics.mean.size(0), device);
  return {std::move(basis.encoder), std::move(basis.decoder), statistics.mean,
          std::move(basis.eigenvalues)};
}

at::Tensor turned_samples(const at::Tensor& samples, const CodedBlock& block,
                          const ModelConfig& config) {
  constexpr double kGolden = 0.6180339887498949, kPlastic = 0.7548776662466927;
  const ChannelPairs pairs = channel_pairs(config, block.first_layer);
  const at::Tensor first = pairs.first.narrow(0, 0, pairs.num_turned);
  const at::Tensor second = pairs.second.narrow(0, 0, pairs.num_turned);
  const at::Tensor of_token = at::arange(samples.size(0), at::kDouble).mul_(kGolden).unsqueeze(1);
  const at::Tensor of_pair = at::arange(pairs.num_turned, at::kDouble).mul_(kPlastic);
  const at::Tensor angle = (of_token + of_pair).frac().mul_(2 * M_PI);
  const double factor = config.attention_factor(block.first_layer);
  const at::Tensor cos = angle.cos().mul_(factor).to(at::kFloat);
  const at::Tensor sin = angle.sin().mul_(factor).to(at::kFloat);
  const at::Tensor a = samples.index_select(1, first), b = samples.index_select(1, second);
  return samples.index_copy(1, first, a * cos - b * sin).index_copy(1, second, a * sin + b * cos);
}

}  // namespace kvc
