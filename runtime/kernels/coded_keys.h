// What turns coefficients of keys into the key channels of one KV head, or multiplies them with its queries.
// Does not use torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/integer_rows.h"

namespace kvc {

// How a decoder's columns are shared out. A basis has head_dim / count channels, and a coefficient is zero
// outside the channels of its basis.
struct KeyBases {
  std::int64_t count = 1;
  bool rotated = false;  // coefficients are of post-RoPE keys, and have one channel each
  const std::int32_t* channels =
      nullptr;  // [head_dim] all, those of a basis together; null: one basis
};

enum class KeyForm {
  kBases,  // channels are products with integers
  kPairs,  // head_dim / 2 bases: of a rotary pair, or of two channels without RoPE; two coefficients each
  kRotated  // queries are multiplied with codes
};

// For a token with codes u and gain g, channel d of its key (pre-RoPE, after its norm) is
//   g * (sum_c weight(d, c) * u_c + offset(d)) + mean(d)
// and with rotated coefficients, of its key post-RoPE
//   g * (sum_c weight(d, c) * u_c + offset(d)) + channel d of the mean, rotated to the token's position
// where weight(d, c) is F[d, c] * step_c, and the offset that of the first levels of all codes. The weights of
// bases are integers times a scale of the channel (integer_rows.h); others are not rounded.
class CodedKeyRows {
 public:
  // The transform of two channels, without coefficients that are zero.
  struct Pair {
    std::int32_t channels[2];  // ascending
    std::int32_t coefficients[2] = {};
    float weights[2][2] = {};  // [channel][coefficient]
    int count = 0;             // of coefficients
  };
  struct RotatedWeight {
    std::int32_t coefficient, channel;
    float weight;
  };

  // decoder: head_dim rows of F, `row_stride` floats apart; steps [num_coefficients], mean [head_dim].
  CodedKeyRows(const TileLayout& layout, const float* decoder, std::int64_t row_stride,
               std::int64_t head_dim, const float* steps, const float* mean,
               const KeyBases& bases = {});

  KeyForm form() const { return form_; }
  std::int64_t head_dim() const { return static_cast<std::int64_t>(mean_.size()); }
  float offset(std::int64_t channel) const { return offset_[static_cast<std::size_t>(channel)]; }
  float mean(std::int64_t channel) const { return mean_[static_cast<std::size_t>(channel)]; }
  // F[channel, coefficient] * step as kernels have it.
  float weight(std::int64_t channel, std::int64_t coefficient) const;
  std::int64_t bytes() const;

  // For kBases: rows are the basis's channels.
  const std::vector<IntegerRows>& bases() const { return bases_; }
  const std::int32_t* channels(std::int64_t basis) const {
    return channels_.data() + basis * bases_[static_cast<std::size_t>(basis)].num_rows();
  }
  const std::vector<Pair>& pairs() const { return pairs_; }               // of kPairs
  const std::vector<RotatedWeight>& rotated() const { return rotated_; }  // of kRotated, in order

 private:
  void set_basis(const TileLayout& layout, const std::vector<float>& weights,
                 std::int64_t num_coefficients, const std::int32_t* channels, std::int64_t count);

  KeyForm form_;
  std::vector<float> offset_, mean_;    // [head_dim]
  std::vector<std::int32_t> channels_;  // [head_dim], by bases
  std::vector<std::int64_t> places_;    // [head_dim] of a channel in these
  std::vector<IntegerRows> bases_;
  std::vector<Pair> pairs_;
  std::vector<RotatedWeight> rotated_;
};

}  // namespace kvc
