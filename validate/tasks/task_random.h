// Random choices that a seed fixes on every platform.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvc {

class TaskRandom {
 public:
  explicit TaskRandom(std::uint64_t seed) : generator_(seed) {}

  std::size_t below(std::size_t count) { return generator_() % count; }

  template <typename Value>
  void shuffle(std::vector<Value>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[below(i)]);
    }
  }

  // 0 ... count - 1 in random order.
  std::vector<std::size_t> permutation(std::size_t count) {
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) {
      order[i] = i;
    }
    shuffle(order);
    return order;
  }

  // A number of that many digits, the first one not 0.
  std::string digits(std::size_t count) {
    std::string text(1, static_cast<char>('1' + below(9)));
    while (text.size() < count) {
      text += static_cast<char>('0' + below(10));
    }
    return text;
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace kvc
