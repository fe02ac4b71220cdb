// The key channels of one KV head of a coded block's decoder, as integers that multiply integer codes. Does
// not use torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/code_tiles.h"

namespace kvc {

// How a decoder's columns are shared out. A basis has head_dim / count channels, and a coefficient is zero
// outside the channels of its basis.
struct KeyBases {
  std::int64_t count = 1;
  bool rotated = false;  // coefficients are of post-RoPE keys, and have one channel each
  const std::int32_t* channels =
      nullptr;  // [head_dim] all, those of a basis together; null: one basis
};

// For a token with codes u and gain g, channel d of its key (pre-RoPE, after its norm) is
//   g * (sum_c weight(d, c) * u_c + offset(d)) + mean(d)
// and with rotated coefficients, of its key post-RoPE
//   g * (sum_c weight(d, c) * u_c + offset(d)) + channel d of the mean, rotated to the token's position
// where weight(d, c) is F[d, c] * step_c, and the offset that of the first levels of all codes. A weight is
// scale(d) times a 16-bit integer, or, from coefficient num_wide on, times 256 and an 8-bit integer, if that
// adds less than kAddedDistortion to the squared error of the codes. A channel's sums over all codes always
// fit in 32 bits.
class CodedKeyRows {
 public:
  static constexpr std::int64_t kQuad = 4;      // coefficients whose products are summed together
  static constexpr std::int64_t kChannels = 8;  // that are rebuilt together
  static constexpr double kAddedDistortion = 0.01;

  // decoder: head_dim rows of F, `row_stride` floats apart; steps [num_coefficients], mean [head_dim].
  CodedKeyRows(const TileLayout& layout, const float* decoder, std::int64_t row_stride,
               std::int64_t head_dim, const float* steps, const float* mean,
               const KeyBases& bases = {});

  std::int64_t head_dim() const { return head_dim_; }
  bool rotated() const { return rotated_; }
  std::int64_t num_quads() const { return num_quads_; }
  std::int64_t num_wide() const { return num_wide_quads_ * kQuad; }
  float scale(std::int64_t channel) const { return scale_[at(channel)]; }
  float offset(std::int64_t channel) const { return offset_[at(channel)]; }
  float mean(std::int64_t channel) const { return mean_[at(channel)]; }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(high_.size() + low_.size()) + 3 * 4 * head_dim_;
  }
  // F[channel, coefficient] * step as kernels have it.
  float weight(std::int64_t channel, std::int64_t coefficient) const {
    return scale(channel) * static_cast<float>(integer(channel, coefficient));
  }
  // In units of the scale.
  int integer(std::int64_t channel, std::int64_t coefficient) const;
  // Those of kChannels channels from a multiple of that on: [num_quads, kChannels, kQuad], the high bytes
  // (256 each), and [num_wide / kQuad, kChannels, kQuad], the low ones. Zeros beyond the last channel or
  // coefficient.
  const std::int8_t* high(std::int64_t channel) const {
    return high_.data() + channel * num_quads_ * kQuad;
  }
  const std::int8_t* low(std::int64_t channel) const {
    return low_.data() + channel * num_wide_quads_ * kQuad;
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  std::int64_t head_dim_, num_quads_, num_wide_quads_ = 0;
  bool rotated_;
  std::vector<float> scale_, offset_, mean_;  // [head_dim]
  std::vector<std::int8_t> high_, low_;
};

}  // namespace kvc
