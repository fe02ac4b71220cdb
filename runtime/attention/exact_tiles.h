// Which tokens a query reads exactly where a prompt is read through codes.
#pragma once

#include <cstdint>

#include "core/kv_plan.h"
#include "runtime/kernels/code_tiles.h"

namespace kvc {

// Those of its own tile of 32 and of the ones before, so many with it. Tiles follow the first `sinks` tokens, which are exact, too.
struct ExactTiles {
  std::int64_t tiles = 1, sinks = 0;

  // The first token from which on a token reads all exactly.
  std::int64_t start(std::int64_t token) const { return exact_start(token, tiles, sinks); }
};

// For a window of whole tiles.
inline ExactTiles exact_tiles(const KvPlan& plan) {
  return {1 + plan.compression.window_tokens / kTileTokens, plan.compression.sink_tokens};
}

}  // namespace kvc
