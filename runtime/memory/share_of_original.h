// kept_ratio as reports state it.
#pragma once

#include <cstdint>

namespace kvc {

// Of nothing 1.
constexpr double share_of_original(std::int64_t bytes, std::int64_t original) {
  return original > 0 ? static_cast<double>(bytes) / static_cast<double>(original) : 1;
}

}  // namespace kvc
