// Norm and RoPE of a tile's keys.
#if defined(KVC_RUNTIME_KERNELS_RAW_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_RAW_KEYS_INL_H_
#undef KVC_RUNTIME_KERNELS_RAW_KEYS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_RAW_KEYS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/decode_attention.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

inline std::int64_t position_of(const KvSegment& segment, std::int64_t row) {
  return segment.positions != nullptr ? segment.positions[row] : segment.first_position + row;
}
// Rows first .. first + count - 1 are at consecutive positions.
inline bool is_run(const KvSegment& segment, std::int64_t first, std::int64_t count) {
  const std::int32_t* positions = segment.positions;
  for (std::int64_t line = 1; positions != nullptr && line < count; ++line) {
    if (positions[first + line] != positions[first] + line) {
      return false;
    }
  }
  return true;
}

// Angles of a tile's rows, shared by its heads. A run of consecutive positions p + i uses the
// angles of p and of i (cos and sin of a sum), which reads less memory than each row's own.
class TileAngles {
 public:
  TileAngles(const RopeAngles& rope, std::int64_t max_rows)
      : rope_(rope), memory_(static_cast<std::size_t>(2 * max_rows * rope.num_pairs)) {}

  // cos and then sin of the tile's row, [2, num_pairs].
  const float* row(std::int64_t line) const { return memory_.data() + 2 * line * rope_.num_pairs; }

  void set(const KvSegment& segment, std::int64_t first, std::int64_t count) {
    if (rope_.num_pairs == 0) {
      return;
    }
    const bool run = is_run(segment, first, count);
    const float inverse = 1 / rope_.cos[0];
    for (std::int64_t line = 0; line < count; ++line) {
      float* to = memory_.data() + 2 * line * rope_.num_pairs;
      if (run) {
        add_angles(position_of(segment, first), line, inverse, to);
      } else {
        const std::int64_t from = position_of(segment, first + line) * rope_.num_pairs;
        std::copy_n(rope_.cos + from, rope_.num_pairs, to);
        std::copy_n(rope_.sin + from, rope_.num_pairs, to + rope_.num_pairs);
      }
    }
  }

 private:
  // cos and sin of position + distance.
  void add_angles(std::int64_t position, std::int64_t distance, float inverse, float* to) const {
    const hn::ScalableTag<float> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::int64_t pairs = rope_.num_pairs;
    const float* cos_a = rope_.cos + position * pairs;
    const float* sin_a = rope_.sin + position * pairs;
    const float* cos_b = rope_.cos + distance * pairs;
    const float* sin_b = rope_.sin + distance * pairs;
    const auto factor = hn::Set(d, inverse);
    std::int64_t i = 0;
    for (; i + lanes <= pairs; i += lanes) {
      const auto ca = hn::Mul(hn::LoadU(d, cos_a + i), factor), cb = hn::LoadU(d, cos_b + i);
      const auto sa = hn::Mul(hn::LoadU(d, sin_a + i), factor), sb = hn::LoadU(d, sin_b + i);
      hn::StoreU(hn::NegMulAdd(sa, sb, hn::Mul(ca, cb)), d, to + i);
      hn::StoreU(hn::MulAdd(sa, cb, hn::Mul(ca, sb)), d, to + pairs + i);
    }
    for (; i < pairs; ++i) {
      to[i] = (cos_a[i] * cos_b[i] - sin_a[i] * sin_b[i]) * inverse;
      to[pairs + i] = (sin_a[i] * cos_b[i] + cos_a[i] * sin_b[i]) * inverse;
    }
  }

  RopeAngles rope_;
  AlignedVector<float> memory_;  // [max_rows, 2, num_pairs]
};

// angles: cos and then sin, [2, num_pairs].
inline void rotate_key(const RopeAngles& rope, const float* angles, float* key) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t pairs = rope.num_pairs;
  const float* cos = angles;
  const float* sin = angles + pairs;
  std::int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::Vec<decltype(d)> a, b;
    if (rope.interleaved) {
      hn::LoadInterleaved2(d, key + 2 * i, a, b);
    } else {
      a = hn::LoadU(d, key + i);
      b = hn::LoadU(d, key + pairs + i);
    }
    const auto turned_a = hn::NegMulAdd(b, s, hn::Mul(a, c));
    const auto turned_b = hn::MulAdd(a, s, hn::Mul(b, c));
    if (rope.interleaved) {
      hn::StoreInterleaved2(turned_a, turned_b, d, key + 2 * i);
    } else {
      hn::StoreU(turned_a, d, key + i);
      hn::StoreU(turned_b, d, key + pairs + i);
    }
  }
  for (; i < pairs; ++i) {
    float& a = key[rope.interleaved ? 2 * i : i];
    float& b = key[rope.interleaved ? 2 * i + 1 : i + pairs];
    const float turned = a * cos[i] - b * sin[i];
    b = b * cos[i] + a * sin[i];
    a = turned;
  }
}

// `width` numbers, zeros from head_dim on; norm is padded likewise.
inline void normalise_key(const float* norm, float epsilon, std::int64_t head_dim,
                          std::int64_t width, float* key) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto squares = hn::Zero(d);
  for (std::int64_t i = 0; i < width; i += lanes) {
    const auto x = hn::LoadU(d, key + i);
    squares = hn::MulAdd(x, x, squares);
  }
  const float mean = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(head_dim);
  const auto factor = hn::Set(d, 1 / std::sqrt(mean + epsilon));
  for (std::int64_t i = 0; i < width; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, key + i), factor), hn::LoadU(d, norm + i)), d, key + i);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
