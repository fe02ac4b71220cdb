#include "core/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace kvc {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
constexpr int kTurn = 29;

using Words = std::array<std::uint64_t, kLanes>;

std::uint64_t step(std::uint64_t lane, std::uint64_t word) {
  return std::rotl((lane ^ word) * kOdd, kTurn);
}

}  // namespace

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  Words lanes;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = kOdd * (lane + 1);
  }
  for (std::size_t first = 0; first < bytes.size(); first += sizeof(Words)) {
    Words words{};
    std::memcpy(words.data(), bytes.data() + first, std::min(sizeof(Words), bytes.size() - first));
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = step(lanes[lane], words[lane]);
    }
  }
  std::uint64_t sum = bytes.size();
  for (const std::uint64_t lane : lanes) {
    sum = step(sum, lane);
  }
  return sum;
}

}  // namespace kvc
