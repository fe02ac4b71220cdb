// Bytes of several stores together.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace kvc {

template <typename Store>
std::int64_t bytes_of(const std::vector<Store>& stores) {
  return std::accumulate(
      stores.begin(), stores.end(), std::int64_t{0},
      [](std::int64_t bytes, const Store& store) { return bytes + store.bytes(); });
}

}  // namespace kvc
