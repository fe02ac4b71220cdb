#include "validate/verdict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "validate/report.h"
#include "validate/task_report.h"

namespace kvc {
namespace {

constexpr const char* kMoreText =
    "score more text with kvvalidate --num-sequences, or name a longer one with --text";
constexpr double kRounding = 1e-6;  // KL divergence of equal numbers: its own share says nothing

struct Threshold {
  const char* option;
  const char* what;
  Estimate measured;
  std::optional<double> limit;
  bool is_most;  // rather than the least

  bool is_missed() const {
    return limit && !(is_most ? measured.mean <= *limit : measured.mean >= *limit);
  }
};

std::array<Threshold, 3> thresholds(const ValidateOptions& options, const Comparison& measured) {
  return {{{"--max-kld", "KL divergence", measured.kl_divergence, options.max_kld, true},
           {"--max-ppl-ratio", "perplexity ratio", perplexity_ratio(measured),
            options.max_ppl_ratio, true},
           {"--min-same-top", "same top", measured.same_top, options.min_same_top, false}}};
}

// "KL divergence 0.012 ± 0.004 of 2 sequences"
std::string found(const char* what, const Estimate& estimate, std::int64_t num_sequences) {
  return fmt::format("{} {} of {} {}", what, with_error(estimate), num_sequences,
                     num_sequences == 1 ? "sequence" : "sequences");
}

}  // namespace

double half_interval(const Estimate& estimate, std::int64_t num_sequences) {
  static constexpr std::array<double, 10> kQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571,
                                                        2.447,  2.365, 2.306, 2.262, 2.228};
  const auto freedom = static_cast<std::size_t>(std::max<std::int64_t>(num_sequences - 1, 1));
  const auto f = static_cast<double>(freedom);
  const double quantile =
      freedom <= kQuantiles.size() ? kQuantiles[freedom - 1] : 1.96 + 2.37 / f + 2.82 / (f * f);
  return quantile * estimate.standard_error;
}

std::vector<std::string> missed_thresholds(const ValidateOptions& options,
                                           const ValidationReport& report) {
  std::vector<std::string> missed;
  for (const Threshold& threshold : thresholds(options, report.continuation)) {
    if (threshold.is_missed()) {
      missed.push_back(fmt::format("{} {:.6g} {} {} {:g}", threshold.what, threshold.measured.mean,
                                   threshold.is_most ? "exceeds" : "is below", threshold.option,
                                   *threshold.limit));
    }
  }
  for (std::string& sentence : missed_tasks(options.tasks, report.tasks)) {
    missed.push_back(std::move(sentence));
  }
  return missed;
}

std::vector<std::string> precision_warnings(const ValidateOptions& options,
                                            const ValidationReport& report) {
  std::vector<std::string> warnings;
  const std::int64_t count = report.num_sequences;
  const Estimate& kld = report.continuation.kl_divergence;
  const auto is_imprecise = [&](const Estimate& estimate, double most) {
    return !(half_interval(estimate, count) <= most);
  };
  const auto reason = [&](const char* of_several) {
    return count == 1 ? "a standard error needs at least two" : of_several;
  };
  if (report.read_ratio && *report.read_ratio >= 1) {
    warnings.push_back(fmt::format(
        "the rows are too short to be compressed: the last scored token is predicted from a cache "
        "of {:.2f} of the original's bytes, so that the measures say nothing of what "
        "compression costs; use longer rows (--seq-len, --text)",
        *report.read_ratio));
  }
  if (kld.mean > kRounding && is_imprecise(kld, kld.mean / 2)) {
    warnings.push_back(fmt::format("{} is uncertain: {}; {}", found("KL divergence", kld, count),
                                   reason("its 95 % interval is at least half its value"),
                                   kMoreText));
  }
  for (const Threshold& threshold : thresholds(options, report.continuation)) {
    const Estimate& measured = threshold.measured;
    if (threshold.limit && is_imprecise(measured, std::abs(measured.mean - *threshold.limit))) {
      warnings.push_back(fmt::format(
          "{} does not decide {} {:g}: {}; {}", found(threshold.what, measured, count),
          threshold.option, *threshold.limit, reason("that lies in the 95 % interval"), kMoreText));
    }
  }
  for (std::string& sentence : undecided_tasks(options.tasks, report.tasks)) {
    warnings.push_back(std::move(sentence));
  }
  return warnings;
}

}  // namespace kvc
