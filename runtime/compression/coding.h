// Encodes tokens of coded layers, and decodes them (method `coded` in docs/methods.md).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/store/coded_store.h"

namespace kvc {

// One layer's tokens, exact or decoded, float32.
struct DecodedTokens {
  at::Tensor key;    // [n, num_kv_heads, head_dim] pre-RoPE, after its norm
  at::Tensor value;  // likewise
};

// Turns keys by RoPE. [n, num_kv_heads, head_dim] float32
using TurnKeys = std::function<at::Tensor(const at::Tensor& keys)>;
// Coefficients of tokens of all layers that are coded together, for each of their blocks, with the blocks'
// factors. `turn`: by the tokens' positions; for rotated blocks. [n, num_coefficients] float32 each, on the device of
// all. begins_text: the first of the tokens is a text's.
std::vector<at::Tensor> coefficients_of(const KvPlan& plan, const CodedLayers& layers,
                                        std::span<const CodedBlockFactors> factors,
                                        const std::vector<DecodedTokens>& tokens,
                                        const TurnKeys& turn = {}, bool begins_text = false);

// Codes exact tokens outside the first policy.sink_tokens and the last policy.window_tokens, in whole
// tiles.
void code_tokens(const Decoder& decoder, const KvPlan& plan, const CodedFactors& factors,
                 CodedStore& store);

// Coded layers of one sequence's cache that are stored together, with what makes and reads their codes.
struct CodedView {
  const Decoder& decoder;
  const KvPlan& plan;
  const CodedFactors& factors;
  const CodedStore& store;

  int layer(int index) const { return store.layers.first_layer + index; }
  const CodedBlock& spec(std::size_t index) const {
    return plan.coded[static_cast<std::size_t>(store.layers.first_block) + index];
  }
  const CodedBlockFactors& block(std::size_t index) const {
    return factors.blocks[static_cast<std::size_t>(store.layers.first_block) + index];
  }
};
// Coefficients of exact rows from `first` on, at `positions`, for every block. [n, num_coefficients] each
std::vector<at::Tensor> encode_exact(const CodedView& coded, std::int64_t first,
                                     const at::Tensor& positions);
// Decodes tokens for layer `index` of the store; `first` begins a tile.
DecodedTokens decode_tokens(const CodedView& coded, int index, std::int64_t first,
                            std::int64_t count);

}  // namespace kvc
