#include "runtime/kernels/value_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/value_sums.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "runtime/kernels/aligned_vector.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kPadding = 16, kHeads = 4, kChannels = 4;

// values (+)= the decoder's rows of kRows channels times the coefficients of `count` heads. z: [count, padded]
template <int kRows>
HWY_INLINE void add_products(const ValueDecoder& decoder, std::int64_t channel, const float* z,
                             std::int64_t padded, std::int64_t count, float* values) {
  const hn::CappedTag<float, kPadding> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t k = decoder.num_coefficients, whole = k / lanes * lanes;
  const float* rows = decoder.rows + channel * k;
  for (std::int64_t first = 0; first < count; first += kHeads) {
    const std::int64_t heads = std::min(kHeads, count - first);
    hn::Vec<decltype(d)> sums[kHeads][kRows];
    for (auto& of_head : sums) {
      for (auto& sum : of_head) {
        sum = hn::Zero(d);
      }
    }
    for (std::int64_t c = 0; c < whole; c += lanes) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        const auto of_head = hn::LoadU(d, z + std::min(first + head, count - 1) * padded + c);
        for (std::int64_t row = 0; row < kRows; ++row) {
          sums[head][row] = hn::MulAdd(of_head, hn::LoadU(d, rows + row * k + c), sums[head][row]);
        }
      }
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t row = 0; row < kRows; ++row) {
        float sum = hn::GetLane(hn::SumOfLanes(d, sums[head][row]));
        for (std::int64_t c = whole; c < k; ++c) {
          sum += z[(first + head) * padded + c] * rows[row * k + c];
        }
        values[(first + head) * decoder.head_dim + channel + row] += sum;
      }
    }
  }
}

void decode(const ValueDecoder& decoder, const float* sums, std::int64_t count, float* values) {
  const std::int64_t k = decoder.num_coefficients;
  const std::int64_t padded = (k + kPadding - 1) / kPadding * kPadding;
  AlignedVector<float> z(static_cast<std::size_t>(count * padded), 0.0f);
  for (std::int64_t head = 0; head < count; ++head, sums += k + 1) {
    float* to = z.data() + head * padded;
    for (std::int64_t c = 0; c < k; ++c) {
      to[c] = sums[c] * decoder.steps[c] + sums[k] * decoder.first_levels[c];
    }
    std::copy(decoder.mean, decoder.mean + decoder.head_dim, values + head * decoder.head_dim);
  }
  std::int64_t channel = 0;
  for (; channel + kChannels <= decoder.head_dim; channel += kChannels) {
    add_products<kChannels>(decoder, channel, z.data(), padded, count, values);
  }
  for (; channel < decoder.head_dim; ++channel) {
    add_products<1>(decoder, channel, z.data(), padded, count, values);
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
