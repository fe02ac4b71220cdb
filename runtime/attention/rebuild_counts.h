// Counts of latents that steps of generation rebuild (core/selective_reconstruction.h).
#pragma once

#include <cstdint>

namespace kvc {

// Tokens whose keys were rebuilt, and those that have latents: sums over steps, layers and KV heads.
struct RebuildCounts {
  std::int64_t rebuilt = 0, latents = 0;

  RebuildCounts& operator+=(const RebuildCounts& more) {
    rebuilt += more.rebuilt;
    latents += more.latents;
    return *this;
  }
  RebuildCounts since(const RebuildCounts& earlier) const {
    return {rebuilt - earlier.rebuilt, latents - earlier.latents};
  }
};

}  // namespace kvc
