// How many tokens of a cache are widened to float32 at a time.
#pragma once

#include <cstdint>

namespace kvc {

// Tokens of a layer or group that are encoded or rebuilt together.
inline constexpr std::int64_t kChunkTokens = 1024;

}  // namespace kvc
