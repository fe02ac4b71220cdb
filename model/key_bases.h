// Bases of the keys of one KV head (CodedBlock::bases): each is of neighbouring rotary pairs. Files hold a basis's own
// channels only.
#pragma once

#include <ATen/ATen.h>

#include "core/kv_sources.h"
#include "model/basis_codes.h"
#include "model/config.h"

namespace kvc {

// Channels of a head, those of each basis together. [bases, head_dim / bases] int64
at::Tensor key_basis_channels(const ModelConfig& config, int layer, int bases);

// A transform whose coefficients belong to one basis each, as files hold it.
struct SplitTransform {
  BasisTransform transform;  // [k, head_dim / bases] and [head_dim / bases, k]
  at::Tensor basis;          // [k] float32, of each coefficient
};
SplitTransform split_bases(const BasisTransform& whole, const at::Tensor& channels);
// [k, head_dim] and [head_dim, k], zero outside a coefficient's basis. Error naming `name` if a number is no basis, or a basis has more coefficients than channels.
BasisTransform join_bases(const SplitTransform& bases, const at::Tensor& channels,
                          const std::string& name);

}  // namespace kvc
