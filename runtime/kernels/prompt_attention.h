// Attention of a prompt's tokens where earlier tokens are read through codes: to rows that were rebuilt from codes, and
// exact ones. Does not use torch.
#pragma once

#include <cstdint>

#include "runtime/kernels/kv_rows.h"

namespace kvc {

// Rows of tokens first .. last - 1 of a sequence, [tokens, heads, head_dim] of kFloat32, kBFloat16 or kFloat16; strides in
// elements.
struct TokenRows {
  void* data = nullptr;
  KvElement element = KvElement::kFloat32;
  std::int64_t token_stride = 0, head_stride = 0;
  std::int64_t first = 0, last = 0;

  std::int64_t place(std::int64_t token, std::int64_t head) const {
    return (token - first) * token_stride + head * head_stride;
  }
};

// Tiles of kTileTokens tokens follow the first `sinks` tokens. A query reads its own tile from `exact`, up to itself, and the
// exact_tiles - 1 before; earlier tiles from `coded`. Sinks are rows of `coded` too, which a query reads once a tile before
// its exact ones exists, and of `exact` until then. With exact_step a query reads all of `exact` up to itself, and `coded`
// before, which ends there.
struct PromptAttention {
  TokenRows query{}, output{};  // of the same tokens, num_heads
  TokenRows coded_key{}, coded_value{}, exact_key{}, exact_value{};  // num_kv_heads; keys post-RoPE
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1, softcap = 0;  // of scores, as in DecodeAttentionParams
  std::int64_t window = 0;       // a query sees the last `window` tokens, itself included; 0: all
  bool exact_step = false;
  std::int64_t exact_tiles = 1, sinks = 0;  // not with exact_step

  // The first token that a query reads from `exact`.
  std::int64_t exact_start(std::int64_t token) const;
  // Where the tile of a token ends; sinks: where their last one does.
  std::int64_t tile_end(std::int64_t token) const;
  // The first token that it sees.
  std::int64_t seen_from(std::int64_t token) const {
    return window == 0 || token < window ? 0 : token - window + 1;
  }
};

// The work, in pieces that need nothing of one another: about equally much in every run of neighbouring ones.
std::int64_t prompt_pieces(const PromptAttention& params);

// Pieces first .. last - 1, in float32. What a query gets depends on its keys and values alone, not on where the prompt was
// cut. Every token that a query sees has to be there: rows that no query sees may be missing at the beginning of `coded`.
void prompt_attention_reference(const PromptAttention& params, std::int64_t first,
                                std::int64_t last);
void prompt_attention(const PromptAttention& params, std::int64_t first, std::int64_t last);

}  // namespace kvc
