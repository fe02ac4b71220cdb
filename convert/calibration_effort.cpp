#include "convert/calibration_effort.h"

#include <algorithm>

namespace kvc {
namespace {

constexpr std::int64_t kKneeSequences = 10;  // of coded, 1024 tokens each

bool is_coded(const ConvertSettings& settings) { return settings.method == "coded"; }

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

}  // namespace

CalibrationEffort thorough_effort(const ModelConfig& config, const ConvertSettings& settings) {
  return {is_coded(settings) ? 40 : 64,
          std::min<std::int64_t>(is_coded(settings) ? 1024 : 512, config.max_position_embeddings)};
}

CalibrationEffort knee_effort(const ModelConfig& config, const ConvertSettings& settings) {
  CalibrationEffort effort = thorough_effort(config, settings);
  if (!is_coded(settings)) {
    return effort;
  }
  const std::int64_t row = std::max<std::int64_t>(1, effort.seq_len - settings.sink_tokens);
  const std::int64_t needed = divide_up(statistics_needs(config, settings).least_tokens, row);
  const std::int64_t worth = divide_up(kKneeSequences * 1024, effort.seq_len);
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
