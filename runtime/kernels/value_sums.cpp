#include "runtime/kernels/value_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/value_sums.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kHeads = 4, kChannels = 4;  // together

using Numbers = hn::CappedTag<float, 16>;
using NumberVec = hn::Vec<Numbers>;

// A head's coefficients, of which those behind the last whole vector come again, as the last ones of a vector with zeros
// otherwise: the decoder's last numbers are read with numbers before them.
class Coefficients {
 public:
  Coefficients(const ValueDecoder& decoder, const float* sums, std::int64_t count)
      : k_(decoder.num_coefficients),
        whole_(k_ / lanes() * lanes()),
        stride_(k_ + 2 * lanes()),
        z_(static_cast<std::size_t>(count * stride_), 0.0f) {
    for (std::int64_t head = 0; head < count; ++head, sums += k_ + 1) {
      float* to = z_.data() + head * stride_;
      for (std::int64_t c = 0; c < k_; ++c) {
        to[c] = sums[c] * decoder.steps[c] + sums[k_] * decoder.first_levels[c];
      }
      if (has_rest()) {
        std::fill(to + k_, to + stride_, 0.0f);
        std::copy(to + whole_, to + k_, to + stride_ - (k_ - whole_));
      }
    }
  }

  static std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(Numbers())); }
  std::int64_t whole() const { return whole_; }
  bool has_rest() const { return whole_ > 0 && whole_ < k_; }
  const float* of_head(std::int64_t head) const { return z_.data() + head * stride_; }
  const float* rest_of_head(std::int64_t head) const { return of_head(head) + stride_ - lanes(); }

 private:
  std::int64_t k_, whole_, stride_;
  std::vector<float> z_;  // [heads, stride]
};

// sums [kHeads][kRows] += the decoder's rows, from `rows` on, times the coefficients.
template <int kRows>
HWY_INLINE void add_products(const float* const* coefficients, const float* rows, std::int64_t k,
                             NumberVec (&sums)[kHeads][kRows]) {
  const Numbers d;
  NumberVec numbers[kRows];
  for (std::int64_t row = 0; row < kRows; ++row) {
    numbers[row] = hn::LoadU(d, rows + row * k);
  }
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const NumberVec z = hn::LoadU(d, coefficients[head]);
    for (std::int64_t row = 0; row < kRows; ++row) {
      sums[head][row] = hn::MulAdd(z, numbers[row], sums[head][row]);
    }
  }
}

// Adds the products of kRows channels, from `channel` on, to values.
template <int kRows>
HWY_INLINE void add_channels(const ValueDecoder& decoder, const Coefficients& z,
                             std::int64_t channel, std::int64_t count, float* values) {
  const Numbers d;
  const std::int64_t k = decoder.num_coefficients, lanes = Coefficients::lanes();
  const float* rows = decoder.rows + channel * k;
  for (std::int64_t first = 0; first < count; first += kHeads) {
    NumberVec sums[kHeads][kRows];
    const float *from[kHeads], *rest[kHeads];
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t existing = std::min(first + head, count - 1);
      from[head] = z.of_head(existing);
      rest[head] = z.rest_of_head(existing);
      for (std::int64_t row = 0; row < kRows; ++row) {
        sums[head][row] = hn::Zero(d);
      }
    }
    for (std::int64_t c = 0; c < z.whole(); c += lanes) {
      const float* at[kHeads] = {from[0] + c, from[1] + c, from[2] + c, from[3] + c};
      add_products<kRows>(at, rows + c, k, sums);
    }
    if (z.has_rest()) {
      add_products<kRows>(rest, rows + k - lanes, k, sums);
    }
    for (std::int64_t head = 0; head < std::min(kHeads, count - first); ++head) {
      float* to = values + (first + head) * decoder.head_dim + channel;
      for (std::int64_t row = 0; row < kRows; ++row) {
        to[row] += hn::GetLane(hn::SumOfLanes(d, sums[head][row]));
        for (std::int64_t c = 0; z.whole() == 0 && c < k; ++c) {
          to[row] += from[head][c] * rows[row * k + c];
        }
      }
    }
  }
}

void decode(const ValueDecoder& decoder, const float* sums, std::int64_t count, float* values) {
  const Coefficients z(decoder, sums, count);
  for (std::int64_t head = 0; head < count; ++head) {
    std::copy(decoder.mean, decoder.mean + decoder.head_dim, values + head * decoder.head_dim);
  }
  std::int64_t channel = 0;
  for (; channel + kChannels <= decoder.head_dim; channel += kChannels) {
    add_channels<kChannels>(decoder, z, channel, count, values);
  }
  for (; channel < decoder.head_dim; ++channel) {
    add_channels<1>(decoder, z, channel, count, values);
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(decode);

void decode_value_sums(const ValueDecoder& decoder, const float* sums, std::int64_t count,
                       float* values) {
  HWY_DYNAMIC_DISPATCH(decode)(decoder, sums, count, values);
}

}  // namespace kvc
#endif  // HWY_ONCE
