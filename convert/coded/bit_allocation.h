// Bits of every coefficient of the model's coded blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/coded/quantiser.h"

namespace kvc {

struct BitAllocation {
  std::vector<std::vector<int>> bits;  // [num_blocks][n]
  std::int64_t total = 0;              // of one token
  double price = 0;  // error that each of the last bits saved; 0 if every coefficient has all
};

// Marginal allocation: takes the steps of every coefficient's lower convex hull of distortions in order of
// error saved per bit until `budget` is spent, skipping steps that no longer fit. Total distortion is
// minimal for the bits spent if distortions are convex. Every block's first coefficient gets a width before
// all others.
BitAllocation allocate_bits(const std::vector<WidthCurves>& blocks, std::int64_t budget);

}  // namespace kvc
