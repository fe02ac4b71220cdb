// Settings that the user left open: what a method takes for the model at hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "model/config.h"

namespace kvc {

// Which settings nobody gave. A preset gives sinks, windows and blocks.
struct OpenSettings {
  bool kept_ratio = false, rank = false, sink = false, window = false, block = false;
};

// Chooses what is open, so that no default is a reason to refuse: exact tokens by the method and the context, fewer
// where the kept_ratio would be out of reach, then a narrower latent; at last a kept_ratio that nobody asked for gives
// way to the least that can be reached. What was given stays. Returns a sentence on each choice that is not the
// method's usual one. Settings that cannot shrink the cache at all are left for make_plan() to refuse.
std::vector<std::string> choose_defaults(const ModelConfig& config, const OpenSettings& open,
                                         ConvertSettings& settings);

// How much calibration text a conversion reads: the knee, from where on more of it gains little
// (docs/quality.md), or the thorough setting.
struct CalibrationEffort {
  std::int64_t num_sequences = 0, seq_len = 0;  // tokens of each

  std::int64_t num_tokens() const { return num_sequences * seq_len; }
};

// What the command line asks for.
struct CalibrationRequest {
  std::int64_t num_sequences = 0, seq_len = 0;  // 0: not given
  bool thorough = false;
};

// Of a method: 40 x 1024 tokens of coded (what is cached depends on how far into a text it is, and a coded basis
// follows it closely), 64 x 512 of the others; rows as long as the model's context at most.
CalibrationEffort thorough_effort(const ModelConfig& config, const ConvertSettings& settings);
// The least that is worth it, and never fewer tokens than the method's statistics need. Of methods other than
// coded the thorough one.
CalibrationEffort knee_effort(const ModelConfig& config, const ConvertSettings& settings);
// The knee on a CPU where nothing is asked for; otherwise the thorough setting, with what is given in its place.
CalibrationEffort choose_effort(const ModelConfig& config, const ConvertSettings& settings,
                                const CalibrationRequest& request);

}  // namespace kvc
