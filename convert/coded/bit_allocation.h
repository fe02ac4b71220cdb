// How many bits every coefficient of the model's coded blocks gets.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/coded/quantiser.h"

namespace kvc {

struct BitAllocation {
  std::vector<std::vector<int>> bits;  // [num_blocks][n]
  std::int64_t total = 0;              // of one token
  double price =
      0;  // error that the last bits taken saved, each; 0 where every coefficient has all
};

// Marginal allocation: of every coefficient the lower convex hull of its distortions, whose steps are taken
// in order of the error they save per bit until `budget` is spent; what no longer fits is passed over. The
// least total distortion for what is spent wherever distortions are convex. Every block's first
// coefficient gets a width before all others.
BitAllocation allocate_bits(const std::vector<WidthCurves>& blocks, std::int64_t budget);

}  // namespace kvc
