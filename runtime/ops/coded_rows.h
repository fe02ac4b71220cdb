// What encodes and decodes the tokens of one coded block, without torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/decode_attention.h"

namespace kvc {

// Of several layers, n channels of a token: layer by layer its keys and then its values, of all KV heads or of one.
enum class PagedParts { kBoth, kKeys, kValues };
struct PagedBlock {
  std::int64_t num_layers = 1, head_dim = 0;
  std::int64_t num_heads = 1;   // KV heads of each layer
  std::int64_t first_head = 0;  // the first of them
  PagedParts parts = PagedParts::kBoth;
  TileLayout layout{};  // k coefficients
  KeyBases bases{};     // of keys alone, of one head
  // float32, copied: E [k, n], F [n, k], mean [n], steps [k] (docs/methods.md, method coded).
  const float *encoder = nullptr, *decoder = nullptr, *mean = nullptr, *steps = nullptr;

  bool has_keys() const { return parts != PagedParts::kValues; }
  bool has_values() const { return parts != PagedParts::kKeys; }
  std::int64_t num_parts() const { return parts == PagedParts::kBoth ? 2 : 1; }
  std::int64_t part_channels() const { return num_heads * head_dim; }
  std::int64_t channels() const { return num_layers * num_parts() * part_channels(); }
};

// Keys of a run of tokens are turned by RoPE, or back. rows [count, head_dim], at positions[i]
enum class Turn { kForwards, kBackwards };
void turn_rows(const RopeAngles& rope, Turn turn, const std::int64_t* positions, std::int64_t count,
               std::int64_t head_dim, float* rows);

class CodedRows {
 public:
  explicit CodedRows(const PagedBlock& block);

  const PagedBlock& spec() const { return spec_; }
  const std::vector<float>& steps() const { return steps_; }
  // Of a layer, [spec().num_heads]
  const CodedKeyRows* keys(std::int64_t layer) const {
    return keys_.data() + layer * spec_.num_heads;
  }

  // Channels of `count` tokens, keys post-RoPE, become coefficients z [count, k]. rows [count, channels()] are
  // overwritten.
  void encode(const RopeAngles& rope, const std::int64_t* positions, std::int64_t count,
              float* rows, float* z) const;
  // Coefficients become a layer's keys, post-RoPE, or values. [count, part_channels()]
  void decode_keys(const RopeAngles& rope, std::int64_t layer, const std::int64_t* positions,
                   std::int64_t count, const float* z, float* rows) const;
  void decode_values(std::int64_t layer, std::int64_t count, const float* z, float* rows) const;
  // Sums of weighted codes [count, k + 1] (coded_attention.h), divided by the sums of weights, become values of the
  // KV head `head` of the block. values [count, head_dim]
  void decode_sums(std::int64_t layer, std::int64_t head, std::int64_t count, const float* sums,
                   float* values) const;

 private:
  // Coefficients that have some channels to themselves.
  struct Basis {
    std::vector<std::int32_t> coefficients, channels;
    std::vector<float> encoder;  // [coefficients, channels]
    std::vector<float> decoder;  // [channels, coefficients]; empty for a single basis
  };

  void add_basis(const std::int32_t* channels, std::int64_t count);
  std::int64_t first_channel(std::int64_t layer, bool values) const;
  // A layer's part without its mean.
  void decode_part(std::int64_t first, std::int64_t count, const float* z, float* rows) const;

  PagedBlock spec_;  // pointers null
  std::int64_t k_;
  std::vector<std::int32_t> channels_;  // of the bases
  std::vector<float> decoder_;          // [n, k]; empty for several bases
  std::vector<float> mean_, steps_, first_levels_;
  std::vector<Basis> bases_;
  std::vector<CodedKeyRows> keys_;  // [num_layers, num_heads]
};

}  // namespace kvc
