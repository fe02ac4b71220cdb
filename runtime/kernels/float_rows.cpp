#include "runtime/kernels/float_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/float_rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float dot(const float* a, const float* b, std::int64_t width) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto even = hn::Zero(d), odd = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= width; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  for (; i + lanes <= width; i += lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
  }
  float sum = width < lanes ? 0 : hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < width; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

void multiply(const FloatRows& rows, const float* x, std::int64_t count, float* out,
              std::int64_t stride) {
  for (std::int64_t row = 0; row < rows.count; ++row) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i * stride + row] = dot(rows.numbers + row * rows.width, x + i * rows.width, rows.width);
    }
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(multiply);

void multiply_rows(const FloatRows& rows, const float* x, std::int64_t count, float* out,
                   std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(multiply)(rows, x, count, out, stride);
}

void multiply_rows_reference(const FloatRows& rows, const float* x, std::int64_t count, float* out,
                             std::int64_t stride) {
  for (std::int64_t row = 0; row < rows.count; ++row) {
    for (std::int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < rows.width; ++j) {
        sum += static_cast<double>(rows.numbers[row * rows.width + j]) * x[i * rows.width + j];
      }
      out[i * stride + row] = static_cast<float>(sum);
    }
  }
}

}  // namespace kvc
#endif  // HWY_ONCE
