#include "convert/calibration_effort.h"

#include <algorithm>

#include "convert/methods/methods.h"

namespace kvc {
namespace {

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

}  // namespace

CalibrationEffort thorough_effort(const ModelConfig& config, const ConvertSettings& settings) {
  const CalibrationText& text = find_method(settings.method).calibration;
  return {text.thorough_rows, std::min<std::int64_t>(text.row_len, config.max_position_embeddings)};
}

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

CalibrationEffort choose_effort(const ModelConfig& config, const ConvertSettings& settings,
                                const CalibrationRequest& request) {
  const bool asked = request.thorough || request.num_sequences > 0 || request.seq_len > 0;
  CalibrationEffort effort = asked || settings.device != "cpu" ? thorough_effort(config, settings)
                                                               : knee_effort(config, settings);
  if (request.num_sequences > 0) {
    effort.num_sequences = request.num_sequences;
  }
  if (request.seq_len > 0) {
    effort.seq_len = request.seq_len;
  }
  return effort;
}

}  // namespace kvc
