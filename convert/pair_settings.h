// Settings of a conversion to paired layers (MiniCache).
#pragma once

#include <string>

#include "core/json.h"

namespace kvc {

// Prompt tokens that keep the vectors of both layers.
//   different  those whose layers differ most, as in the paper's text
//   inverted   those whose layers differ least, as in published implementations
enum class PairRetention { kDifferent, kInverted };

std::string to_string(PairRetention);
PairRetention parse_pair_retention(const std::string&);  // Error lists the known ones

struct PairSettings {
  PairRetention retention = PairRetention::kDifferent;
  double position = 0.6;  // of the shared direction between the lower (0) and the upper layer's (1)
  double retained = 0.05;  // gamma
};

Json to_json(const PairSettings& settings);
// UsageError naming a flag out of range.
void check_ranges(const PairSettings& settings);

}  // namespace kvc
