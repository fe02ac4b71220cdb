#include "model/eigen/reflector_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/eigen/reflector_kernel.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<double, 8>;
using V = hn::Vec<D>;
constexpr D kTag;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(D()));
constexpr int kVectors = 3;  // of a row of x, held in registers
// Reflectors whose sums fit in the registers: 32 with 512-bit vectors and on ARM, else 16.
constexpr int kTogether = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 8 : 4;

// `kTogether` reflectors, from `v` and `w` on, times kVectors vectors of each row.
HWY_INLINE void multiply(const double* v, std::int64_t rows, const double* x, V (*sums)[kVectors]) {
  for (std::int64_t r = 0; r < rows; ++r) {
    V row[kVectors];
    HWY_UNROLL(3)
    for (int i = 0; i < kVectors; ++i) {
      row[i] = hn::LoadU(kTag, x + r * kPanelColumns + i * kLanes);
    }
    HWY_UNROLL(8)
    for (int k = 0; k < kTogether; ++k) {
      const V factor = hn::Set(kTag, v[r * kReflectorGroup + k]);
      HWY_UNROLL(3)
      for (int i = 0; i < kVectors; ++i) {
        sums[k][i] = hn::MulAdd(factor, row[i], sums[k][i]);
      }
    }
  }
}

HWY_INLINE void apply_tile(const double* v, const double* w, std::int64_t rows, double* x) {
  V all[kReflectorGroup][kVectors];
  for (int first = 0; first < kReflectorGroup; first += kTogether) {
    V sums[kTogether][kVectors];
    HWY_UNROLL(8)
    for (int k = 0; k < kTogether; ++k) {
      HWY_UNROLL(3)
      for (int i = 0; i < kVectors; ++i) {
        sums[k][i] = hn::Zero(kTag);
      }
    }
    multiply(v + first, rows, x, sums);
    HWY_UNROLL(8)
    for (int k = 0; k < kTogether; ++k) {
      HWY_UNROLL(3)
      for (int i = 0; i < kVectors; ++i) {
        all[first + k][i] = sums[k][i];
      }
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    V row[kVectors];
    HWY_UNROLL(3)
    for (int i = 0; i < kVectors; ++i) {
      row[i] = hn::LoadU(kTag, x + r * kPanelColumns + i * kLanes);
    }
    HWY_UNROLL(8)
    for (int k = 0; k < kReflectorGroup; ++k) {
      const V factor = hn::Set(kTag, w[r * kReflectorGroup + k]);
      HWY_UNROLL(3)
      for (int i = 0; i < kVectors; ++i) {
        row[i] = hn::NegMulAdd(factor, all[k][i], row[i]);
      }
    }
    HWY_UNROLL(3)
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreU(row[i], kTag, x + r * kPanelColumns + i * kLanes);
    }
  }
}

void apply_reflectors(const double* v, const double* w, std::int64_t rows, double* x) {
  for (std::int64_t column = 0; column < kPanelColumns; column += kVectors * kLanes) {
    apply_tile(v, w, rows, x + column);
  }
}

constexpr int kParts = static_cast<int>(kReflectorGroup / kLanes);  // vectors in a row of v

// products = v^T v
HWY_INLINE void multiply_self(const double* v, std::int64_t rows, double* products) {
  for (int part = 0; part < kParts; ++part) {
    V sums[kReflectorGroup];
    HWY_UNROLL(8)
    for (int k = 0; k < kReflectorGroup; ++k) {
      sums[k] = hn::Zero(kTag);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const double* row = v + r * kReflectorGroup;
      const V own = hn::LoadU(kTag, row + part * kLanes);
      HWY_UNROLL(8)
      for (int k = 0; k < kReflectorGroup; ++k) {
        sums[k] = hn::MulAdd(hn::Set(kTag, row[k]), own, sums[k]);
      }
    }
    HWY_UNROLL(8)
    for (int k = 0; k < kReflectorGroup; ++k) {
      hn::StoreU(sums[k], kTag, products + k * kReflectorGroup + part * kLanes);
    }
  }
}

void join_reflectors(const double* v, const double* scales, std::int64_t rows, double* w) {
  constexpr int kSize = static_cast<int>(kReflectorGroup);
  HWY_ALIGN double products[kSize * kSize];
  HWY_ALIGN double factor[kSize * kSize] = {};
  multiply_self(v, rows, products);
  for (int i = 0; i < kSize; ++i) {
    factor[i * kSize + i] = scales[i];
    for (int k = 0; k < i; ++k) {
      double sum = 0;
      for (int l = k; l < i; ++l) {
        sum += factor[k * kSize + l] * products[l * kSize + i];
      }
      factor[k * kSize + i] = -scales[i] * sum;
    }
  }
  for (int part = 0; part < kParts; ++part) {
    V column[kReflectorGroup];
    HWY_UNROLL(8)
    for (int k = 0; k < kSize; ++k) {
      column[k] = hn::LoadU(kTag, factor + k * kSize + part * kLanes);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      V sum = hn::Zero(kTag);
      HWY_UNROLL(8)
      for (int k = 0; k < kSize; ++k) {
        sum = hn::MulAdd(hn::Set(kTag, v[r * kSize + k]), column[k], sum);
      }
      hn::StoreU(sum, kTag, w + r * kSize + part * kLanes);
    }
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(join_reflectors);
HWY_EXPORT(apply_reflectors);

void join_reflectors(const double* v, const double* scales, std::int64_t rows, double* w) {
  HWY_DYNAMIC_DISPATCH(join_reflectors)(v, scales, rows, w);
}

void apply_reflectors(const double* v, const double* w, std::int64_t rows, double* x) {
  HWY_DYNAMIC_DISPATCH(apply_reflectors)(v, w, rows, x);
}

}  // namespace kvc
#endif  // HWY_ONCE
