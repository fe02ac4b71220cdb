// Shared by attention that keeps its scores in memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace kvc {

inline constexpr std::int64_t kScoresPerChunk = std::int64_t{1} << 24;  // 64 MB of float32 scores

// [n, heads, channels] as float32 [heads, n, channels].
inline at::Tensor heads_first(const at::Tensor& x) { return x.to(at::kFloat).transpose(0, 1); }

}  // namespace kvc
