// How much calibration text a conversion reads: the knee, beyond which more text gains little
// (docs/quality.md), or the thorough setting.
#pragma once

#include <cstdint>

#include "convert/convert.h"
#include "model/config.h"

namespace kvc {

struct CalibrationEffort {
  std::int64_t num_sequences = 0, seq_len = 0;  // tokens of each

  std::int64_t num_tokens() const { return num_sequences * seq_len; }
};

// Options of the command line.
struct CalibrationRequest {
  std::int64_t num_sequences = 0, seq_len = 0;  // 0: not given
  bool thorough = false;
};

// A method's thorough setting: 40 x 1024 tokens for coded (keys depend on their place in a text, and a coded
// basis follows them closely), 64 x 512 for the others; rows are at most as long as the model's context.
CalibrationEffort thorough_effort(const ModelConfig& config, const ConvertSettings& settings);
// The knee, but never fewer tokens than the method's statistics require. For methods other than coded the
// thorough setting.
CalibrationEffort knee_effort(const ModelConfig& config, const ConvertSettings& settings);
// The knee on a CPU if nothing is requested; otherwise the thorough setting with the requested values.
CalibrationEffort choose_effort(const ModelConfig& config, const ConvertSettings& settings,
                                const CalibrationRequest& request);

}  // namespace kvc
