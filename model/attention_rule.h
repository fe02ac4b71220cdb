// What a layer's attention adds to softmax(query · key) value.
#pragma once

#include <cstdint>
#include <optional>

namespace kvc {

struct AttentionRule {
  // A query at position p sees positions in (p - window, p].
  std::optional<std::int64_t> window{};
  std::optional<double> scale{};  // of query · key; nullopt: 1 / sqrt(head_dim)
  double softcap = 0;             // s: scores x become s tanh(x / s); 0: none
};

}  // namespace kvc
