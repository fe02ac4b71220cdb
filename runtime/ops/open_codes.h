// Caches of codes that an engine has opened, by number.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/ops/paged_codes.h"

namespace kvc {

// Angles stay where the engine has them.
struct OpenCodes {
  std::optional<PagedCodes> codes;
  std::optional<torch::stable::Tensor> cos, sin;
};

// What an engine says of codes. Pointers are into its tensors.
struct CodesDescription {
  PagedCodes::Shape shape;
  std::vector<PagedBlock> blocks{};
};

// Throws where numbers or tensors do not fit each other.
// shape: layers, query heads, KV heads, head_dim, first KV head, window. scale: those of scores and of their soft cap.
// cos, sin: of rotary pairs (i, i + pairs). blocks: 14 numbers for each: head or -1, parts, bases, rotated, gain,
// coefficients of 0 to 8 bits. factors: 6 for each: encoder, decoder, mean, steps, channels of its bases (int32; of one basis: empty),
// first (empty: the mean).
CodesDescription describe_codes(const std::vector<std::int64_t>& shape,
                                const torch::stable::Tensor& scale,
                                const torch::stable::Tensor& cos, const torch::stable::Tensor& sin,
                                const std::vector<std::int64_t>& blocks,
                                const std::vector<torch::stable::Tensor>& factors);
std::int64_t open_codes(const std::vector<std::int64_t>& shape, const torch::stable::Tensor& scale,
                        const torch::stable::Tensor& cos, const torch::stable::Tensor& sin,
                        const std::vector<std::int64_t>& blocks,
                        const std::vector<torch::stable::Tensor>& factors);
void close_codes(std::int64_t handle);
std::shared_ptr<const OpenCodes> find_codes(std::int64_t handle);  // throws if they are closed

}  // namespace kvc
