#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::size_t kFirstRanked = 64;
constexpr std::size_t kRankedGrowth = 8;

// Cuts `all` to its most probable that sum to `top_p` of the whole; ties to the lower id. Few are ranked,
// because few make up most of a distribution.
void keep_most_probable(std::vector<Candidate>& all, double top_p) {
  double total = 0;
  for (const Candidate& candidate : all) {
    total += candidate.weight;
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
  };
  double kept = 0;
  std::size_t count = 0, ranked = 0;
  while (count < all.size() && (count == 0 || kept < top_p * total)) {
    if (count == ranked) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(ranked);
      ranked = std::min(all.size(), std::max(kFirstRanked, ranked * kRankedGrowth));
      std::partial_sort(begin, all.begin() + static_cast<std::ptrdiff_t>(ranked), all.end(),
                        before);
    }
    kept += all[count++].weight;
  }
  all.resize(count);
}

// The k-th largest logit; without a k, none is too small.
float smallest_of_top(std::vector<float> logits, std::int64_t top_k) {
  if (top_k == 0 || top_k >= static_cast<std::int64_t>(logits.size())) {
    return -std::numeric_limits<float>::infinity();
  }
  const auto nth = logits.begin() + static_cast<std::ptrdiff_t>(top_k - 1);
  std::nth_element(logits.begin(), nth, logits.end(), std::greater<>());
  return *nth;
}

std::vector<Candidate> filtered(const std::vector<float>& logits, const SamplingOptions& options) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  const float smallest = smallest_of_top(logits, options.top_k);
  std::vector<Candidate> kept;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] >= smallest) {
      kept.push_back({static_cast<std::int64_t>(id),
                      std::exp((static_cast<double>(logits[id]) - largest) / options.temperature)});
    }
  }
  if (options.top_p < 1) {
    keep_most_probable(kept, options.top_p);
  }
  if (options.min_p > 0) {  // the most probable token's weight is 1
    std::erase_if(kept,
                  [&](const Candidate& candidate) { return candidate.weight < options.min_p; });
  }
  return kept;
}

}  // namespace

void check(const SamplingOptions& options) {
  KVC_CHECK_USAGE(options.temperature >= 0 && std::isfinite(options.temperature),
                  "--temperature {}: expected 0 (greedy) or a positive number",
                  options.temperature);
  KVC_CHECK_USAGE(options.top_k >= 0, "--top-k {}: expected 0 (all) or a positive number",
                  options.top_k);
  KVC_CHECK_USAGE(options.top_p > 0 && options.top_p <= 1,
                  "--top-p {}: expected a number in (0, 1]", options.top_p);
  KVC_CHECK_USAGE(options.min_p >= 0 && options.min_p <= 1,
                  "--min-p {}: expected a number in [0, 1]", options.min_p);
  constexpr double kMostPenalty = 1e6;  // logits stay finite
  KVC_CHECK_USAGE(
      options.repetition_penalty >= 1 / kMostPenalty && options.repetition_penalty <= kMostPenalty,
      "--repetition-penalty {}: expected a number from 1e-6 to 1e6; 1 is none",
      options.repetition_penalty);
}

void check_logits(const at::Tensor& logits) {
  const at::Tensor row = logits.contiguous();
  const std::span<const float> values(row.const_data_ptr<float>(),
                                      static_cast<std::size_t>(row.numel()));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  KVC_CHECK(std::ranges::all_of(values, [](float x) { return x < kInfinity; }) &&
                std::ranges::any_of(values, [](float x) { return x > -kInfinity; }),
            "the model's logits are not finite; does the checkpoint hold NaN or infinity? --dtype "
            "float32 has the widest range");
}

Sampler::Sampler(const SamplingOptions& options, std::uint64_t seed,
                 const std::vector<std::int64_t>& prompt)
    : options_(options), generator_(seed) {
  check(options);
  for (const std::int64_t id : prompt) {
    mark(id);
  }
}

void Sampler::mark(std::int64_t id) {
  if (options_.repetition_penalty == 1) {
    return;
  }
  const auto index = static_cast<std::size_t>(id);
  if (index >= seen_.size()) {
    seen_.resize(index + 1);
  }
  seen_[index] = true;
}

std::vector<Candidate> Sampler::distribution(const at::Tensor& logits) const {
  check_logits(logits);
  const at::Tensor row = logits.contiguous();
  const float* first = row.const_data_ptr<float>();
  std::vector<float> values(first, first + row.numel());
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (std::size_t id = 0; id < std::min(seen_.size(), values.size()); ++id) {
    if (seen_[id]) {
      values[id] = values[id] < 0 ? values[id] * penalty : values[id] / penalty;
    }
  }
  if (options_.temperature == 0) {
    return {{std::max_element(values.begin(), values.end()) - values.begin(), 1}};
  }
  return filtered(values, options_);
}

std::int64_t Sampler::next(const at::Tensor& logits) {
  const std::vector<Candidate> left = distribution(logits);
  double total = 0;
  for (const Candidate& candidate : left) {
    total += candidate.weight;
  }
  std::int64_t token = left.front().id;
  const double uniform = static_cast<double>(generator_() >> 11) * 0x1.0p-53;  // [0, 1)
  double passed = 0;
  for (const Candidate& candidate : left) {
    if (candidate.weight > 0) {
      token = candidate.id;
      passed += candidate.weight;
    }
    if (uniform * total < passed) {
      break;
    }
  }
  mark(token);
  return token;
}

}  // namespace kvc
