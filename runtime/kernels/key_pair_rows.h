// Keys whose codes meet the query (forms `pairs` and `rotated`) as rows in pairs of channels, as a GPU's kernels read them
// (KeyRows of runtime/kernels/cuda/attention_codes.h). Does not use torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_keys.h"

namespace kvc {

// Two channels of a head that RoPE turns together, by column `angle` of the angles, or that it leaves (-1).
struct ChannelPair {
  std::int32_t first = 0, second = 0, angle = -1;
};
// Pairs (i, i + num_pairs), then the other channels in two halves.
std::vector<ChannelPair> channel_pairs_of(std::int64_t head_dim, std::int64_t num_pairs);

// As many rows of every head, those that a head lacks with weights 0: number * weights in two channels, turned by the angle.
struct KeyPairRows {
  std::int64_t num_heads = 0, count = 0;
  std::vector<std::int32_t> channels;  // [num_heads, 2, count]
  std::vector<std::int32_t> angles;    // [num_heads, count]; -1: not turned
  std::vector<float> weights;          // as channels
};

// A row for every coefficient, whose number is its code's level times the gain. heads: of one form that is not kBases.
KeyPairRows code_pair_rows(const std::vector<const CodedKeyRows*>& heads,
                           const std::vector<ChannelPair>& pairs);
// Rows whose numbers are 1: of means that are not zero in both channels.
KeyPairRows mean_pair_rows(const std::vector<const CodedKeyRows*>& heads,
                           const std::vector<ChannelPair>& pairs);

}  // namespace kvc
