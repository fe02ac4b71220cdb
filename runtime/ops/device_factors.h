// The factors of coded blocks as GPU kernels read them, in memory of the CPU. Does not use torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/key_pair_rows.h"
#include "runtime/ops/coded_rows.h"

namespace kvc {

// The blocks that have KV heads' keys, or their values: every KV head has one. As many heads each, ascending.
struct HeadBlocks {
  const std::vector<PagedBlock>* blocks = nullptr;
  std::vector<int> numbers;
  std::int64_t num_kv_heads = 0;
  bool values = false;

  int number_of(std::int64_t head) const;
  const PagedBlock& of(std::int64_t head) const;
  // The first of a head's channels in its block.
  std::int64_t channel(std::int64_t layer, std::int64_t head) const;
};

// Rows of F times the steps in float16, each divided by its largest number, its scale; zeros from a row's last coefficient up to
// the width.
struct FactorRows {
  std::vector<std::uint16_t> rows;  // [count, width]
  std::vector<float> scales;        // [count]
  std::vector<float> means;         // [count] the channels' means
};

// [num_kv_heads, head_dim] rows of a layer's values.
FactorRows value_rows(const HeadBlocks& values, std::int64_t layer, std::int64_t width);

// A layer's keys that are rebuilt, as KeyPairs and RebuiltKeys of runtime/kernels/cuda/attention_rank.h describe them.
struct RebuiltKeyRows {
  int num_pairs = 0;
  std::vector<std::int32_t> channels, angles;
  FactorRows rows;
};
RebuiltKeyRows rebuilt_key_rows(const HeadBlocks& keys, std::int64_t layer, std::int64_t num_pairs,
                                std::int64_t width);

// A layer's keys whose codes meet the query.
struct MetKeyRows {
  KeyPairRows codes, means;
};
MetKeyRows met_key_rows(const HeadBlocks& keys, std::int64_t layer, std::int64_t num_pairs);
KeyForm key_form(const HeadBlocks& keys);

// first - F steps / 2: code 0 has the value of half a step, so that a first token which equals `first` is exact. [n]
std::vector<float> first_mean(const PagedBlock& block);
// E transposed [n, k], and F times the steps transposed [k, n].
std::vector<float> encoder_columns(const PagedBlock& block);
std::vector<float> decoder_columns(const PagedBlock& block);

}  // namespace kvc
