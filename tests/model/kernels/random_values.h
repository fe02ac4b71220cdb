// Reproducible random numbers for kernel tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace kvc::testing {

inline std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value :
       values) {  // of a type whose arithmetic is exact, unlike std::normal_distribution
    value = static_cast<float>(static_cast<int>(generator() % 20001) - 10000) / 8192;
  }
  return values;
}

}  // namespace kvc::testing
