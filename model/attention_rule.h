// What a layer's attention does besides softmax(query · key) value.
#pragma once

#include <cstdint>
#include <optional>

namespace kvc {

struct AttentionRule {
  // A query sees the tokens whose position is at most its own and greater than its own minus the window.
  std::optional<std::int64_t> window{};
  std::optional<double> scale{};  // of query · key; nullopt: 1 / sqrt(head_dim)
  double softcap = 0;             // s: scores x become s tanh(x / s); 0: none
};

}  // namespace kvc
