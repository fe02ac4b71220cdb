// Attention of a prompt's tokens where earlier ones are read through codes, in LibTorch: what runtime/kernels/prompt_attention.h
// says, on any device.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <utility>

#include "model/decoder.h"
#include "runtime/attention/exact_tiles.h"

namespace kvc {

// Rows of a sequence's tokens from `first` on, [n, num_kv_heads, head_dim]; keys post-RoPE.
struct PromptRows {
  at::Tensor key, value;
  std::int64_t first = 0;

  std::int64_t last() const { return first + key.size(0); }
};

// Layers of one piece of a prompt: which tokens its queries see is found once.
class CodedPromptAttention {
 public:
  static constexpr std::int64_t kQueriesPerBlock = 256;
  // Without flash attention, how many tokens that all queries of a block see are multiplied at once.
  static constexpr std::int64_t kTokensAtOnce = 1024;
  // The most tokens that a block multiplies with a mask. window: of tokens that are read exactly.
  static std::int64_t most_masked_tokens(std::int64_t window);

  explicit CodedPromptAttention(const ExactTiles& tiles) : tiles_(tiles) {}

  const ExactTiles& tiles() const { return tiles_; }

  // query [n, num_heads, head_dim] post-RoPE, of the sequence's last tokens; [n, num_heads * head_dim]. coded: of the tokens
  // before that from which the last query reads exactly, sinks among them. exact: of the tokens from which the first query
  // does on.
  at::Tensor attend(const at::Tensor& query, const PromptRows& coded, const PromptRows& exact,
                    const AttentionRule& rule);

 private:
  ExactTiles tiles_;
  // Which tokens a block's queries do not see, by the first query and the window (0: none): [queries, tokens] bool.
  std::map<std::pair<std::int64_t, std::int64_t>, at::Tensor> hidden_;
};

}  // namespace kvc
