// Chooses the settings that the user left open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "model/config.h"

namespace kvc {

// Settings that were not given. A preset gives sinks, windows and blocks.
struct OpenSettings {
  bool kept_ratio = false, rank = false, sink = false, window = false, block = false;
};

// Chooses open settings so that no default causes a refusal: exact tokens by method and context, fewer if the
// kept_ratio would be out of reach, then a narrower latent; finally the lowest possible kept_ratio if none was given.
// Given settings stay. Returns a sentence for each choice that is not the method's usual one. make_plan() refuses
// settings that cannot shrink the cache at all.
std::vector<std::string> choose_defaults(const ModelConfig& config, const OpenSettings& open,
                                         ConvertSettings& settings);

// How much calibration text a conversion reads: the knee, beyond which more text gains little
// (docs/quality.md), or the thorough setting.
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
// basis follows them closely), 64 x 512 for the others; rows are at most as long as the model's context, and coded takes
// more of them then.
CalibrationEffort thorough_effort(const ModelConfig& config, const ConvertSettings& settings);
// The knee on a CPU if nothing is requested; otherwise the thorough setting with the requested values.
CalibrationEffort choose_effort(const ModelConfig& config, const ConvertSettings& settings,
                                const CalibrationRequest& request);

}  // namespace kvc
