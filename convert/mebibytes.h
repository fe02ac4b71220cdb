// Sizes as plans print them.
#pragma once

#include <cstdint>

namespace kvc {

constexpr double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace kvc
