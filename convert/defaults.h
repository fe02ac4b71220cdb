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
