#include "convert/defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/methods/methods.h"
#include "convert/plan.h"

namespace kvc {
namespace {

// The choices for one model. A method without exact tokens, or whose kept_ratio is no target, leaves nothing to choose there.
class Chooser {
 public:
  Chooser(const ModelConfig& config, const OpenSettings& open, ConvertSettings& settings)
      : config_(config),
        open_(open),
        settings_(settings),
        method_(find_method(settings.method)),
        context_(plan_context(config, settings)) {}

  std::vector<std::string> choose() {
    take_usual_tokens();
    if (method_.least_kept_ratio == nullptr) {
      return notes_;
    }
    if (!reaches()) {
      keep_fewer_exact();
      narrow_rank();
      take_nearest_ratio();
    }
    return notes_;
  }

 private:
  double least() const { return method_.least_kept_ratio({config_, settings_}); }
  bool reaches() const { return least() <= settings_.kept_ratio; }

  void take_usual_tokens() {
    if (method_.exact_tokens == nullptr) {
      return;
    }
    const ExactTokens usual = method_.exact_tokens(settings_, context_);
    if (open_.sink) {
      settings_.sink_tokens = usual.sink;
    }
    if (open_.window) {
      settings_.window_tokens = usual.window;
    }
    if (open_.block) {
      settings_.block_tokens = usual.block;
    }
  }

  // Half the window at a time, then none of the first tokens; all of them where that is of no use.
  void keep_fewer_exact() {
    const std::int64_t sink = settings_.sink_tokens, window = settings_.window_tokens;
    while (open_.window && settings_.window_tokens > 0 && !reaches()) {
      settings_.window_tokens /= 2;
    }
    if (open_.sink && settings_.sink_tokens > 0 && !reaches()) {
      settings_.sink_tokens = 0;
    }
    if (!reaches()) {
      settings_.sink_tokens = sink;
      settings_.window_tokens = window;
    }
    if (sink != settings_.sink_tokens || window != settings_.window_tokens) {
      notes_.push_back(
          fmt::format("--sink {} --window {} instead of {} and {}: with so many exact tokens, a "
                      "cache of {} cannot reach a kept_ratio of {:g}",
                      settings_.sink_tokens, settings_.window_tokens, sink, window, context_,
                      settings_.kept_ratio));
    }
  }

  void narrow_rank() {
    if (!open_.rank || method_.rank == nullptr || reaches()) {
      return;
    }
    double& rank = method_.rank(settings_);
    const double usual = rank;
    for (int percent = static_cast<int>(std::ceil(usual * 100)) - 1; percent >= 1; --percent) {
      rank = percent / 100.0;
      if (reaches()) {
        notes_.push_back(fmt::format(
            "--rank {:g} instead of {:g}: a wider latent cannot reach a kept_ratio of {:g}", rank,
            usual, settings_.kept_ratio));
        return;
      }
    }
    rank = usual;
  }

  void take_nearest_ratio() {
    constexpr double kSteps = 1000;
    const double nearest = std::ceil(least() * kSteps) / kSteps;
    if (!open_.kept_ratio || reaches() || nearest >= 1) {
      return;
    }
    notes_.push_back(fmt::format(
        "kept_ratio {:.3f}, the lowest possible, instead of {:g}: in a cache of {} tokens, {} stay "
        "exact (--sink {}, --window {}){}",
        nearest, settings_.kept_ratio, context_,
        std::min(context_, settings_.sink_tokens + settings_.window_tokens), settings_.sink_tokens,
        settings_.window_tokens,
        open_.rank || method_.rank == nullptr
            ? ""
            : fmt::format(", and --rank {:g} sets the bytes of a merged token",
                          method_.rank(settings_))));
    settings_.kept_ratio = nearest;
  }

  const ModelConfig& config_;
  const OpenSettings& open_;
  ConvertSettings& settings_;
  const Method& method_;
  const std::int64_t context_;
  std::vector<std::string> notes_;
};

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

// The knee, but never fewer tokens than the method's statistics require. For methods other than coded the
// thorough setting.
CalibrationEffort knee_effort(const ModelConfig& config, const ConvertSettings& settings) {
  const CalibrationText& text = find_method(settings.method).calibration;
  CalibrationEffort effort = thorough_effort(config, settings);
  if (text.knee_rows == text.thorough_rows) {
    return effort;
  }
  const std::int64_t row = std::max<std::int64_t>(1, effort.seq_len - settings.sink_tokens);
  const std::int64_t needed = divide_up(statistics_needs(config, settings).least_tokens, row);
  const std::int64_t worth = divide_up(text.knee_rows * text.row_len, effort.seq_len);
  effort.num_sequences = std::max(worth, needed);
  return effort;
}

}  // namespace

std::vector<std::string> choose_defaults(const ModelConfig& config, const OpenSettings& open,
                                         ConvertSettings& settings) {
  return Chooser(config, open, settings).choose();
}

CalibrationEffort thorough_effort(const ModelConfig& config, const ConvertSettings& settings) {
  const CalibrationText& text = find_method(settings.method).calibration;
  const auto row = std::min<std::int64_t>(text.row_len, config.max_position_embeddings);
  // More rows in a shorter context, as the knee takes: of methods that have one.
  const bool has_knee = text.thorough_rows != text.knee_rows;
  return {has_knee ? divide_up(text.thorough_rows * text.row_len, row) : text.thorough_rows, row};
}

CalibrationEffort choose_effort(const ModelConfig& config, const ConvertSettings& settings,
                                const CalibrationRequest& request) {
  const bool asked = request.thorough || request.num_sequences > 0 || request.seq_len > 0;
  CalibrationEffort effort = asked || settings.device != "cpu" ? thorough_effort(config, settings)
                                                               : knee_effort(config, settings);
  if (request.seq_len > 0) {
    effort = {find_method(settings.method).calibration.thorough_rows, request.seq_len};
  }
  if (request.num_sequences > 0) {
    effort.num_sequences = request.num_sequences;
  }
  return effort;
}

}  // namespace kvc
