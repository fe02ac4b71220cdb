#include "model/kernels/element.h"
#include "model/kernels/int8_matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/dequantize.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void dequantize(const Int8Matrix& matrix, std::int64_t first, std::int64_t last, WeightElement to,
                void* out) {
  dequantize_int8_reference(matrix, first, last, to, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
constexpr std::int64_t kLanes = hn::MaxLanes(Floats());

HWY_INLINE void store(hn::Vec<Floats> values, float* to) { hn::StoreU(values, Floats(), to); }
HWY_INLINE void store(hn::Vec<Floats> values, hwy::float16_t* to) {
  const hn::Rebind<hwy::float16_t, Floats> narrow;
  hn::StoreU(hn::DemoteTo(narrow, values), narrow, to);
}
// Round to nearest even.
HWY_INLINE void store(hn::Vec<Floats> values, hwy::bfloat16_t* to) {
  const hn::RebindToUnsigned<Floats> wide;
  const hn::RebindToSigned<Floats> integers;  // the results are below 2^16: nothing saturates
  const hn::Rebind<std::uint16_t, Floats> narrow;
  const auto bits = hn::BitCast(wide, values);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(wide, 0x7fff)), odd));
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(integers, rounded)), narrow,
             reinterpret_cast<std::uint16_t*>(to));
}

template <class T>
HWY_INLINE void dequantize_group(const std::int8_t* codes, float scale, T* out) {
  const Floats d;
  for (std::int64_t i = 0; i < kInt8Group; i += kLanes) {
    const auto narrow = hn::LoadU(hn::Rebind<std::int8_t, Floats>(), codes + i);
    const auto wide = hn::PromoteTo(hn::Rebind<std::int32_t, Floats>(), narrow);
    store(hn::Mul(hn::ConvertTo(d, wide), hn::Set(d, scale)), out + i);
  }
}

template <class T>
void dequantize_rows(const Int8Matrix& matrix, std::int64_t first, std::int64_t last, T* out) {
  const std::int64_t groups = int8_groups(matrix.in), rest = matrix.in % kInt8Group;
  for (std::int64_t row = first; row < last; ++row) {
    const std::int8_t* codes = matrix.codes + row * groups * kInt8Group;
    const std::uint16_t* scales = matrix.scales + row * groups;
    for (std::int64_t group = 0; group < matrix.in / kInt8Group; ++group) {
      dequantize_group(codes + group * kInt8Group, float_of_float16(scales[group]), out);
      out += kInt8Group;
    }
    if (rest > 0) {
      T last_group[kInt8Group];
      dequantize_group(codes + (groups - 1) * kInt8Group, float_of_float16(scales[groups - 1]),
                       last_group);
      std::memcpy(out, last_group, static_cast<std::size_t>(rest) * sizeof(T));
      out += rest;
    }
  }
}

void dequantize(const Int8Matrix& matrix, std::int64_t first, std::int64_t last, WeightElement to,
                void* out) {
  switch (to) {
    case WeightElement::kFloat32:
      return dequantize_rows(matrix, first, last, static_cast<float*>(out));
    case WeightElement::kBFloat16:
      return dequantize_rows(matrix, first, last, static_cast<hwy::bfloat16_t*>(out));
    case WeightElement::kFloat16:
#if HWY_TARGET == HWY_SSE4
      // Without an instruction for it Highway rounds otherwise.
      return dequantize_int8_reference(matrix, first, last, to, out);
#else
      return dequantize_rows(matrix, first, last, static_cast<hwy::float16_t*>(out));
#endif
  }
}

#endif

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(dequantize);

void dequantize_int8(const Int8Matrix& matrix, std::int64_t first, std::int64_t last,
                     WeightElement to, void* out) {
  HWY_DYNAMIC_DISPATCH(dequantize)(matrix, first, last, to, out);
}

}  // namespace kvc
#endif  // HWY_ONCE
