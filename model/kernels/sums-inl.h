// Sums over the lanes of vectors, four at a time. Included once per instruction set.
#if defined(KVC_MODEL_KERNELS_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_MODEL_KERNELS_SUMS_INL_H_
#undef KVC_MODEL_KERNELS_SUMS_INL_H_
#else
#define KVC_MODEL_KERNELS_SUMS_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Adds the 128-bit blocks of a vector.
template <class D>
HWY_INLINE auto fold_blocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    (void)d;
    return v;
  } else {
    const hn::Half<D> half;
    return fold_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// to[i] = sum of the lanes of v[i], for four vectors of floats.
template <class V>
HWY_INLINE void store_sums(const V* v, float* to) {
  const hn::DFromV<V> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const auto low = hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const auto high = hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto even = hn::InterleaveLower(pairs, hn::BitCast(pairs, low), hn::BitCast(pairs, high));
  const auto odd = hn::InterleaveUpper(pairs, hn::BitCast(pairs, low), hn::BitCast(pairs, high));
  hn::StoreU(fold_blocks(d, hn::Add(hn::BitCast(d, even), hn::BitCast(d, odd))),
             hn::CappedTag<float, 4>(), to);
}

#endif
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
