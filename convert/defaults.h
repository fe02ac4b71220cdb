// Chooses the settings that the user left open.
#pragma once

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

}  // namespace kvc
