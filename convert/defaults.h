// Settings that the user left open: what a method takes for the model at hand.
#pragma once

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

}  // namespace kvc
