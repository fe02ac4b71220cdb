#include "validate/comparison.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kNumRanges = 32;

template <typename Value>
SequenceSum sum_over(std::size_t count, const Value& value) {
  SequenceSum sum{0, static_cast<std::int64_t>(count)};
  for (std::size_t i = 0; i < count; ++i) {
    sum.sum += value(i);
  }
  return sum;
}

KlHistogram histogram_of(const std::vector<float>& divergences) {
  KlHistogram histogram;
  for (const float divergence : divergences) {
    const double bin =
        divergence > 0
            ? std::floor((std::log10(static_cast<double>(divergence)) - KlHistogram::kFirst) /
                         KlHistogram::kWidth)
            : 0;
    const double last = KlHistogram::kNumBins - 1;
    ++histogram.counts[static_cast<std::size_t>(std::clamp(bin, 0.0, last))];
  }
  return histogram;
}

std::vector<PositionRange> ranges_of(const std::vector<SequenceSum>& by_position) {
  const auto end = static_cast<std::int64_t>(by_position.size());
  std::int64_t first = 0;
  while (by_position[static_cast<std::size_t>(first)].count == 0) {
    ++first;
  }
  const std::int64_t num_ranges = std::min(kNumRanges, end - first);
  std::vector<PositionRange> ranges;
  for (std::int64_t i = 0; i < num_ranges; ++i) {
    PositionRange range{first + (end - first) * i / num_ranges,
                        first + (end - first) * (i + 1) / num_ranges, 0};
    const std::vector<SequenceSum> inside(by_position.begin() + range.begin,
                                          by_position.begin() + range.end);
    range.kl_divergence = clustered_mean(inside).mean;
    ranges.push_back(range);
  }
  return ranges;
}

constexpr std::int64_t kChunkElements = 1 << 18;  // logits compared at a time, in a core's cache

void append(std::vector<double>& values, const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  const double* data = contiguous.const_data_ptr<double>();
  values.insert(values.end(), data, data + contiguous.numel());
}

at::Tensor log_probabilities(const at::Tensor& logits, const char* model) {
  at::Tensor result = at::log_softmax(logits.to(at::kDouble), 1);
  // One non-finite logit makes its whole row not finite, or is -inf itself.
  KVC_CHECK(result.isfinite().all().item<bool>(),
            "the {}'s logits are not finite; --dtype float32 has the widest range", model);
  return result;
}

void score_chunk(const at::Tensor& reference_logits, const at::Tensor& candidate_logits,
                 const at::Tensor& targets, PositionScores& scores) {
  const at::Tensor reference = log_probabilities(reference_logits, "reference");
  const bool are_same = candidate_logits.const_data_ptr() == reference_logits.const_data_ptr();
  const at::Tensor candidate =
      are_same ? reference : log_probabilities(candidate_logits, "candidate");
  const at::Tensor column = targets.unsqueeze(1);
  const at::Tensor reference_target = reference.gather(1, column).squeeze(1);
  const at::Tensor candidate_target = candidate.gather(1, column).squeeze(1);
  // Rounding can leave a divergence of equal distributions a few 1e-17 below zero.
  append(scores.kl_divergence, (reference.exp() * (reference - candidate)).sum(1).clamp_min(0));
  append(scores.reference_nll, -reference_target);
  append(scores.candidate_nll, -candidate_target);
  append(scores.delta_p, candidate_target.exp() - reference_target.exp());
  const at::Tensor same = reference_logits.argmax(1).eq(candidate_logits.argmax(1)).contiguous();
  const bool* data = same.const_data_ptr<bool>();
  scores.same_top.insert(scores.same_top.end(), data, data + same.numel());
}

}  // namespace

void ComparisonAccumulator::add(std::int64_t first_position, const PositionScores& scores) {
  const std::size_t count = scores.kl_divergence.size();
  reference_nll_.push_back(sum_over(count, [&](auto i) { return scores.reference_nll[i]; }));
  candidate_nll_.push_back(sum_over(count, [&](auto i) { return scores.candidate_nll[i]; }));
  log_ratio_.push_back(
      sum_over(count, [&](auto i) { return scores.candidate_nll[i] - scores.reference_nll[i]; }));
  kl_.push_back(sum_over(count, [&](auto i) { return scores.kl_divergence[i]; }));
  same_top_.push_back(sum_over(count, [&](auto i) { return scores.same_top[i] ? 1.0 : 0.0; }));
  delta_p_.push_back(sum_over(count, [&](auto i) { return scores.delta_p[i]; }));
  delta_p_square_.push_back(
      sum_over(count, [&](auto i) { return scores.delta_p[i] * scores.delta_p[i]; }));
  const auto first = static_cast<std::size_t>(first_position);
  by_position_.resize(std::max(by_position_.size(), first + count));
  for (std::size_t i = 0; i < count; ++i) {
    divergences_.push_back(static_cast<float>(scores.kl_divergence[i]));
    by_position_[first + i].sum += scores.kl_divergence[i];
    ++by_position_[first + i].count;
  }
}

Comparison ComparisonAccumulator::finalize() const {
  KVC_CHECK(!divergences_.empty(), "no position was scored");
  Comparison result;
  result.num_positions = static_cast<std::int64_t>(divergences_.size());
  result.reference_nll = clustered_mean(reference_nll_);
  result.candidate_nll = clustered_mean(candidate_nll_);
  result.reference_perplexity = std::exp(result.reference_nll.mean);
  result.candidate_perplexity = std::exp(result.candidate_nll.mean);
  result.log_perplexity_ratio = clustered_mean(log_ratio_);
  result.perplexity_ratio = std::exp(result.log_perplexity_ratio.mean);
  result.kl_divergence = clustered_mean(kl_);
  std::vector<float> sorted = divergences_;
  std::sort(sorted.begin(), sorted.end());
  result.kl_median = percentile(sorted, 0.5);
  result.kl_p90 = percentile(sorted, 0.9);
  result.kl_p95 = percentile(sorted, 0.95);
  result.kl_p99 = percentile(sorted, 0.99);
  result.kl_p999 = percentile(sorted, 0.999);
  result.kl_max = static_cast<double>(sorted.back());
  result.same_top = clustered_mean(same_top_);
  result.delta_p = clustered_mean(delta_p_);
  result.delta_p_rms = root_of(clustered_mean(delta_p_square_));
  result.kl_histogram = histogram_of(divergences_);
  result.kl_by_position = ranges_of(by_position_);
  return result;
}

Estimate clustered_mean(const std::vector<SequenceSum>& sequences) {
  double sum = 0;
  std::int64_t count = 0;
  for (const SequenceSum& sequence : sequences) {
    sum += sequence.sum;
    count += sequence.count;
  }
  Estimate estimate;
  estimate.mean = sum / static_cast<double>(count);
  const auto clusters = static_cast<double>(sequences.size());
  if (sequences.size() < 2) {
    return estimate;
  }
  double squares = 0;
  for (const SequenceSum& sequence : sequences) {
    squares += std::pow(sequence.sum - estimate.mean * static_cast<double>(sequence.count), 2);
  }
  estimate.standard_error =
      std::sqrt(clusters / (clusters - 1) * squares) / static_cast<double>(count);
  return estimate;
}

Estimate root_of(const Estimate& mean_square) {
  const double root = std::sqrt(mean_square.mean);
  return {root, root > 0 ? mean_square.standard_error / (2 * root) : mean_square.standard_error};
}

double percentile(const std::vector<float>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return (1 - weight) * static_cast<double>(sorted[below]) +
         weight * static_cast<double>(sorted[above]);
}

PositionScores score_positions(const at::Tensor& reference_logits,
                               const at::Tensor& candidate_logits, const at::Tensor& targets) {
  const std::int64_t positions = reference_logits.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, kChunkElements / reference_logits.size(1));
  PositionScores scores;
  for (std::int64_t begin = 0; begin < positions; begin += step) {
    const std::int64_t count = std::min(step, positions - begin);
    score_chunk(reference_logits.narrow(0, begin, count), candidate_logits.narrow(0, begin, count),
                targets.narrow(0, begin, count), scores);
  }
  return scores;
}

}  // namespace kvc
