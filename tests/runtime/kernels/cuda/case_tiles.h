// What tiles of codes must hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "tests/runtime/kernels/tile_widths.h"

namespace kvc::testing {

// Has coefficients of every kind of width; steps suit numbers of order one.
TileLayout case_layout(bool gain);
std::vector<float> case_steps(std::int64_t count, unsigned seed);

// Empty, or the first place where they differ.
std::string first_difference(const std::string& what, const std::vector<std::uint8_t>& actual,
                             const std::vector<std::uint8_t>& expected);

// A tile whose first tokens have the coefficients z [num_tokens, num_coefficients]; the others' codes and gains are 0.
// Empty, or what is wrong of its gains or codes. values [num_tokens, num_coefficients]: levels times gains.
std::string check_tile(const TileLayout& layout, const float* z, std::size_t num_tokens,
                       const std::vector<float>& steps, const std::vector<std::uint8_t>& tile,
                       std::vector<float>& values);

}  // namespace kvc::testing
