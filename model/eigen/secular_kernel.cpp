#include "model/eigen/secular_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/eigen/secular_kernel.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<double>;
using V = hn::Vec<D>;

HWY_INLINE double sum(D d, V v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

PoleSums sum_poles(const double* poles, const double* weights, std::int64_t count, double origin,
                   double shift) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V from = hn::Set(d, origin), by = hn::Set(d, shift), one = hn::Set(d, 1.0);
  V value = hn::Zero(d), slope = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V distance = hn::Sub(hn::Sub(hn::LoadU(d, poles + i), from), by);
    const V inverse = hn::Div(one, distance);
    const V term = hn::Mul(hn::LoadU(d, weights + i), inverse);
    value = hn::Add(value, term);
    slope = hn::MulAdd(term, inverse, slope);
  }
  PoleSums sums{sum(d, value), sum(d, slope)};
  for (; i < count; ++i) {
    const double inverse = 1 / ((poles[i] - origin) - shift);
    sums.value += weights[i] * inverse;
    sums.slope += weights[i] * inverse * inverse;
  }
  return sums;
}

double multiply_ratios(const double* poles, const double* origins, const double* shifts,
                       std::int64_t count, double pole) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V own = hn::Set(d, pole);
  V products = hn::Set(d, 1.0);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V above = hn::Add(hn::Sub(hn::LoadU(d, origins + i), own), hn::LoadU(d, shifts + i));
    products = hn::Mul(products, hn::Div(above, hn::Sub(hn::LoadU(d, poles + i), own)));
  }
  double product = 1;
  HWY_ALIGN double lane[hn::MaxLanes(D())];
  hn::Store(products, d, lane);
  for (std::int64_t k = 0; k < lanes; ++k) {
    product *= lane[k];
  }
  for (; i < count; ++i) {
    product *= ((origins[i] - pole) + shifts[i]) / (poles[i] - pole);
  }
  return product;
}

void fill_vector(const double* poles, const double* weights, std::int64_t count, double origin,
                 double shift, double* vector) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V from = hn::Set(d, origin), by = hn::Set(d, shift);
  V squares = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V distance = hn::Sub(hn::Sub(hn::LoadU(d, poles + i), from), by);
    const V entry = hn::Div(hn::LoadU(d, weights + i), distance);
    squares = hn::MulAdd(entry, entry, squares);
    hn::StoreU(entry, d, vector + i);
  }
  double square = sum(d, squares);
  for (; i < count; ++i) {
    vector[i] = weights[i] / ((poles[i] - origin) - shift);
    square += vector[i] * vector[i];
  }
  const double scale = 1 / std::sqrt(square);
  const V scales = hn::Set(d, scale);
  for (i = 0; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Mul(scales, hn::LoadU(d, vector + i)), d, vector + i);
  }
  for (; i < count; ++i) {
    vector[i] *= scale;
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(sum_poles);
HWY_EXPORT(multiply_ratios);
HWY_EXPORT(fill_vector);

PoleSums sum_poles(const double* poles, const double* weights, std::int64_t count, double origin,
                   double shift) {
  return HWY_DYNAMIC_DISPATCH(sum_poles)(poles, weights, count, origin, shift);
}

double multiply_ratios(const double* poles, const double* origins, const double* shifts,
                       std::int64_t count, double pole) {
  return HWY_DYNAMIC_DISPATCH(multiply_ratios)(poles, origins, shifts, count, pole);
}

void fill_vector(const double* poles, const double* weights, std::int64_t count, double origin,
                 double shift, double* vector) {
  HWY_DYNAMIC_DISPATCH(fill_vector)(poles, weights, count, origin, shift, vector);
}

}  // namespace kvc
#endif  // HWY_ONCE
