// Converts keys and values of two adjacent layers to shared directions and back (MiniCache, arXiv
// 2405.14366).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "runtime/store/kv_cache.h"
#include "runtime/store/pair_store.h"

namespace kvc {

// Vectors along the last axis, [..., width] float32. [...] in [0, pi], also exact for small angles; 0 if a
// vector is zero.
at::Tensor angle_between(const at::Tensor& lower, const at::Tensor& upper);
// Unit vectors at `position` t of the way from the lower vectors' directions to the upper ones'. If one vector is
// zero, the other's direction.
at::Tensor interpolate(const at::Tensor& lower, const at::Tensor& upper, double position);
// Tokens of these angles [n] that PairedLayers retains, ascending. [k] int64
at::Tensor retained_tokens(const PairedLayers& rule, const at::Tensor& angles);

// Merges the pair's remaining tokens from position `first` on.
void merge_pair(const PairedLayers& rule, std::int64_t first, PairStore& pair);

// Restores merged rows first .. first + count - 1 for layer `index` of their pair, [count, num_kv_heads, head_dim] in
// `dtype`.
at::Tensor restored_rows(const PairedRows& rows, std::int64_t index, std::int64_t first,
                         std::int64_t count, at::ScalarType dtype);

}  // namespace kvc
