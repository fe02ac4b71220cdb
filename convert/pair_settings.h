// What shapes a conversion to paired layers (MiniCache).
#pragma once

#include "convert/convert.h"

namespace kvc {

// Which prompt tokens keep the vectors of both layers.
//   different  those whose layers differ most, as the paper's text asks
//   inverted   those whose layers differ least, as published implementations do
enum class PairRetention { kDifferent, kInverted };

struct PairSettings {
  PairRetention retention = PairRetention::kDifferent;
  double position = 0.6;  // of the shared direction between the lower (0) and the upper layer's (1)
  double retained = 0.05;  // gamma
};

Options pair_options(ConvertSettings& settings);

}  // namespace kvc
