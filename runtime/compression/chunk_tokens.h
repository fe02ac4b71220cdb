// How much of a cache is widened to float32 at a time.
#pragma once

#include <cstdint>

namespace kvc {

// Of a layer or group, encoded or rebuilt together.
inline constexpr std::int64_t kChunkTokens = 1024;

}  // namespace kvc
