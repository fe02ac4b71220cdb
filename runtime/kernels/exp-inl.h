// exp of numbers <= 0, as in softmaxes.
#if defined(KVC_RUNTIME_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_EXP_INL_H_
#undef KVC_RUNTIME_KERNELS_EXP_INL_H_
#else
#define KVC_RUNTIME_KERNELS_EXP_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

// 2^n 2^f of x / log(2) = n + f with n whole: the polynomial is off by at most 2e-7 of 2^f. Zero for -infinity
// and NaN.
HWY_INLINE __m512 exp_below_zero(__m512 x) {
  const __m512 log2e = _mm512_set1_ps(0x1.715476p+0f), rest = _mm512_set1_ps(0x1.4ae0cp-26f);
  x = _mm512_max_ps(x, _mm512_set1_ps(-120));
  const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), 8);
  const __m512 f = _mm512_fmadd_ps(x, rest, _mm512_fmsub_ps(x, log2e, whole));
  __m512 power = _mm512_set1_ps(1.3267e-3f);
  for (const float coefficient : {9.67546e-3f, 5.550743e-2f, 2.4022122e-1f, 6.9314694e-1f, 1.0f}) {
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(coefficient));
  }
  return _mm512_scalef_ps(power, whole);
}

template <class D>
HWY_INLINE hn::Vec<D> exp_below_zero(D, hn::Vec<D> x) {
  return hn::Vec<D>{exp_below_zero(x.raw)};
}

#else

// The same, but zero from exp(-87) down: all results have all bits.
template <class D>
HWY_INLINE hn::Vec<D> exp_below_zero(D d, hn::Vec<D> x) {
  const hn::Rebind<std::int32_t, D> d32;
  const auto least = hn::Set(d, -87), log2e = hn::Set(d, 0x1.715476p+0f);
  // log(2) in two parts; whole numbers times the first are exact.
  const auto log2 = hn::Set(d, 0x1.62e4p-1f), rest = hn::Set(d, 0x1.7f7d1cp-20f);
  const auto is_more = hn::Gt(x, least);
  x = hn::Max(x, least);
  const auto whole = hn::Round(hn::Mul(x, log2e));
  const auto f = hn::Mul(hn::NegMulAdd(whole, rest, hn::NegMulAdd(whole, log2, x)), log2e);
  auto power = hn::Set(d, 1.3267e-3f);
  for (const float coefficient : {9.67546e-3f, 5.550743e-2f, 2.4022122e-1f, 6.9314694e-1f, 1.0f}) {
    power = hn::MulAdd(power, f, hn::Set(d, coefficient));
  }
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(d32, whole));
  return hn::IfThenElseZero(is_more, hn::BitCast(d, hn::Add(hn::BitCast(d32, power), exponent)));
}

#endif

// Scores x become softcap * tanh(x / softcap), from exp(-2 |x| / softcap).
template <class D>
HWY_INLINE hn::Vec<D> cap_score(D d, hn::Vec<D> x, float softcap) {
  const auto one = hn::Set(d, 1);
  const auto e = exp_below_zero(d, hn::Mul(hn::Abs(x), hn::Set(d, -2 / softcap)));
  return hn::CopySign(hn::Div(hn::Mul(hn::Set(d, softcap), hn::Sub(one, e)), hn::Add(one, e)), x);
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
