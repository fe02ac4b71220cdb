// What kernels of attention take, for those that refuse the rest before anything is launched.
#pragma once

#include <cstdint>

namespace kvc {

// Heads whose queries meet codes, and how many of them share a KV head: what registers hold.
constexpr bool meets_heads(std::int64_t head_dim) {
  return head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256;
}
constexpr int most_met_heads(std::int64_t head_dim) { return head_dim <= 128 ? 16 : 8; }

}  // namespace kvc
