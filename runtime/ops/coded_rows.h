// What encodes and decodes the tokens of one coded block, without torch.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_sources.h"
#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/packed_rows.h"

namespace kvc {

// A CodedBlock (core/kv_sources.h) with its factors: of some layers, n channels of a token.
struct PagedBlock {
  std::int64_t num_layers = 1, head_dim = 0;
  std::int64_t num_heads = 1;   // KV heads of each layer
  std::int64_t first_head = 0;  // the first of them
  CodedParts parts = CodedParts::kBoth;
  TileLayout layout{};  // k coefficients
  KeyBases bases{};     // of keys alone, of one head
  // float32, copied: E [k, n], F [n, k], mean [n], steps [k] (docs/methods.md, method coded).
  const float *encoder = nullptr, *decoder = nullptr, *mean = nullptr, *steps = nullptr;
  // [n] y of a text's first token, which is coded about it; null: about the mean
  const float* first = nullptr;

  bool has_keys() const { return parts != CodedParts::kValues; }
  bool has_values() const { return parts != CodedParts::kKeys; }
  std::int64_t num_parts() const { return parts == CodedParts::kBoth ? 2 : 1; }
  std::int64_t part_channels() const { return num_heads * head_dim; }
  std::int64_t channels() const { return num_layers * num_parts() * part_channels(); }
};

class CodedRows {
 public:
  explicit CodedRows(const PagedBlock& block);

  const PagedBlock& spec() const { return spec_; }
  const std::vector<float>& steps() const { return steps_; }
  // A layer's, [spec().num_heads]
  const CodedKeyRows* keys(std::int64_t layer) const {
    return keys_.data() + layer * spec_.num_heads;
  }

  // True if position 0 has a mean of its own. first_keys() is what its keys, which position 0 turns by no angle, then have
  // besides what the kernels rebuild: [num_heads * head_dim] of a layer.
  bool has_first() const { return !first_mean_.empty(); }
  std::vector<float> first_keys(const RopeAngles& rope, std::int64_t layer) const;

  // Channels of `count` tokens, keys post-RoPE, become coefficients z [count, k]. rows [count, channels()] are
  // overwritten.
  void encode(const RopeAngles& rope, const std::int64_t* positions, std::int64_t count,
              float* rows, float* z) const;
  // Coefficients become a layer's keys, post-RoPE, or values. [count, part_channels()]
  void decode_keys(const RopeAngles& rope, std::int64_t layer, const std::int64_t* positions,
                   std::int64_t count, const float* z, float* rows) const;
  void decode_values(std::int64_t layer, const std::int64_t* positions, std::int64_t count,
                     const float* z, float* rows) const;
  // Sums of weighted codes [count, k + 1] (coded_attention.h), divided by the sums of weights, become values of the
  // KV head `head` of the block. first_weights [count]: of position 0, null without a mean of its own. values
  // [count, head_dim]
  void decode_sums(std::int64_t layer, std::int64_t head, std::int64_t count, const float* sums,
                   const float* first_weights, float* values) const;

 private:
  std::int64_t first_channel(std::int64_t layer, bool values) const;
  // first - F steps / 2, with F as it is now: code 0 has the value of half a step, so that a first token which equals
  // `first` is decoded exactly. [channels()]; empty without `first`
  std::vector<float> first_mean(const std::vector<float>& decoder) const;
  // The mean of tokens at `position`, `first` at 0: one head's keys, turned, where coefficients are rotated. [channels()]
  void turned_mean(const RopeAngles& rope, std::int64_t position, const std::vector<float>& first,
                   float* mean) const;
  // A layer's part without its mean, from channel `first` on.
  void decode_part(std::int64_t first, std::int64_t count, const float* z, float* rows) const;

  PagedBlock spec_;  // pointers null
  std::int64_t k_;
  PackedRows encoder_;
  std::vector<PackedRows> decoders_;  // of every head_dim channels
  std::vector<float> mean_, steps_, first_levels_;
  // first_mean() for E, and with F's rounded rows of keys
  std::vector<float> first_encoded_, first_mean_;
  std::vector<CodedKeyRows> keys_;  // [num_layers, num_heads]
};

}  // namespace kvc
