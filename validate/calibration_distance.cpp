#include "validate/calibration_distance.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/token_set.h"
#include "validate/comparison.h"
#include "validate/model_run.h"

namespace kvc {
namespace {

constexpr std::size_t kMostRows = 8;
// docs/quality.md: of texts of one kind it is less, of a novel and children's stories more.
constexpr double kFarRatio = 1.5;

}  // namespace

Estimate calibration_nll(Engine& reference, const std::filesystem::path& path) {
  const TokenSet tokens = read_token_set(path, reference.config().vocab_size);
  const std::size_t total = tokens.sequences.size(), wanted = std::min(kMostRows, total);
  std::vector<SequenceSum> nll;
  for (std::size_t i = 0; i < wanted; ++i) {
    const std::vector<std::int64_t>& row = tokens.sequences[i * total / wanted];
    if (row.size() < 2) {
      continue;
    }
    const at::Tensor logits = teacher_forced_logits(reference, {row}).front();
    const PositionScores scores =
        score_positions(logits, logits, at::tensor(row, at::kLong).slice(0, 1));
    nll.push_back({std::accumulate(scores.reference_nll.begin(), scores.reference_nll.end(), 0.0),
                   static_cast<std::int64_t>(scores.reference_nll.size())});
  }
  KVC_CHECK(!nll.empty(), "{}: no row of at least 2 tokens", path.string());
  return clustered_mean(nll);
}

double calibration_distance(const ValidationReport& report) {
  if (!report.calibration_nll) {
    return 1;
  }
  const double judged = report.teacher_forced.reference_nll.mean;
  const double calibrated = report.calibration_nll->mean;
  return std::max(judged, calibrated) / std::min(judged, calibrated);
}

std::string calibration_warning(const ValidationReport& report) {
  if (!(calibration_distance(report) > kFarRatio)) {
    return "";
  }
  return fmt::format(
      "the text this was measured on is of another kind than the calibration text: the original "
      "spends {:.2f} nats per token on it, {:.2f} on the other; calibrate on text of your own kind "
      "with --calibration FILE",
      report.teacher_forced.reference_nll.mean, report.calibration_nll->mean);
}

}  // namespace kvc
