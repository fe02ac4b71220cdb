#include "model/kernels/int8_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/int8_product.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "model/kernels/cpu_features.h"
#include "model/kernels/element.h"
#include "model/kernels/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void multiply_int8(const Int8ProductParams& params, std::int64_t first, std::int64_t last,
                   float* y) {
  int8_product_reference(params, first, last, y);
}

#else

using Integers = hn::ScalableTag<std::int16_t>;
using Sums = hn::RepartitionToWide<Integers>;  // int32
using Floats = hn::RebindToFloat<Sums>;
using Vector = hn::Vec<Floats>;
constexpr std::int64_t kCodes = hn::MaxLanes(Integers());
constexpr int kSteps = static_cast<int>(kInt8Group / std::min(kInt8Group, kCodes));
constexpr std::int64_t kLanes = hn::MaxLanes(Floats());
constexpr int kRows = 4;  // of the matrix, whose sums are reduced together
constexpr std::int64_t kAheadBytes = 8192;

// One row of the matrix against kX rows of x.
template <int kX>
struct Operands {
  const std::int8_t* codes;
  const std::int16_t* x[kX];
  const float* scales[kX];  // of the row's groups times those of x
};

// Adds one group's products, scaled, to total[kX].
template <int kX>
HWY_INLINE void add_group(const Operands<kX>& operands, std::int64_t group, Vector* total) {
  const Integers d;
  hn::Vec<Integers> codes[kSteps];
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const hn::Rebind<std::int8_t, Integers> narrow;
    codes[i] =
        hn::PromoteTo(d, hn::LoadU(narrow, operands.codes + group * kInt8Group + i * kCodes));
  }
  for (int j = 0; j < kX; ++j) {
    auto even = hn::Zero(Sums()), odd = hn::Zero(Sums());
    for (std::int64_t i = 0; i < kSteps; ++i) {
      const auto x = hn::LoadU(d, operands.x[j] + group * kInt8Group + i * kCodes);
      even = hn::ReorderWidenMulAccumulate(Sums(), codes[i], x, even, odd);
    }
    const auto sum = hn::ConvertTo(Floats(), hn::RearrangeToOddPlusEven(even, odd));
    total[j] = hn::MulAdd(sum, hn::Set(Floats(), operands.scales[j][group]), total[j]);
  }
}

// total[kX], not yet summed over lanes. Several independent sums hide the latency of additions.
template <int kX>
HWY_INLINE void multiply_row(const Operands<kX>& operands, std::int64_t groups, Vector* total) {
  constexpr int kUnroll = 4 / kX;
  Vector sums[kUnroll * kX];
  for (Vector& sum : sums) {
    sum = hn::Zero(Floats());
  }
  std::int64_t group = 0;
  for (; group + kUnroll <= groups; group += kUnroll) {
    fetch_ahead(operands.codes + group * kInt8Group + kAheadBytes, kUnroll * kInt8Group);
    for (int i = 0; i < kUnroll; ++i) {
      add_group(operands, group + i, sums + i * kX);
    }
  }
  for (; group < groups; ++group) {
    add_group(operands, group, sums);
  }
  for (int j = 0; j < kX; ++j) {
    total[j] = sums[j];
    for (int i = 1; i < kUnroll; ++i) {
      total[j] = hn::Add(total[j], sums[i * kX + j]);
    }
  }
}

// Scales of a row of the matrix times those of a row of x.
HWY_INLINE void multiply_scales(const std::uint16_t* of_row, const float* of_x, std::int64_t groups,
                                float* scales) {
  const hn::Rebind<hwy::float16_t, Floats> narrow;
  const auto* row = reinterpret_cast<const hwy::float16_t*>(of_row);
  if (groups < kLanes) {
    for (std::int64_t i = 0; i < groups; ++i) {
      scales[i] = float_of_float16(of_row[i]) * of_x[i];
    }
    return;
  }
  for (std::int64_t i = 0; i < groups; i += kLanes) {
    const std::int64_t at =
        std::min(i, groups - kLanes);  // the last ones again rather than others'
    const Vector wide = hn::PromoteTo(Floats(), hn::LoadU(narrow, row + at));
    hn::StoreU(hn::Mul(wide, hn::LoadU(Floats(), of_x + at)), Floats(), scales + at);
  }
}

// All rows of x, kX at a time.
template <int kX>
class Product {
 public:
  explicit Product(const Int8ProductParams& params)
      : params_(params),
        groups_(int8_groups(params.weight.in)),
        scales_(static_cast<std::size_t>(kX * groups_)) {}

  // Rows row(0) .. row(kRows - 1) of the matrix times kX rows of x from `begin` on, the last one again
  // where there are no more. sums: [kRows, kX]
  template <class Row>
  HWY_INLINE void multiply(const Row& row, std::int64_t begin, float* sums) {
    Vector total[kRows * kX];
    for (std::int64_t i = 0; i < kRows; ++i) {
      multiply_row(operands(row(i), begin), groups_, total + i * kX);
    }
    for (int i = 0; i < kRows * kX; i += 4) {
      store_sums(total + i, sums + i);
    }
  }

 private:
  HWY_INLINE Operands<kX> operands(std::int64_t row, std::int64_t begin) {
    const Int8Matrix& weight = params_.weight;
    Operands<kX> operands;
    operands.codes = weight.codes + row * groups_ * kInt8Group;
    for (std::int64_t j = 0; j < kX; ++j) {
      const std::int64_t of_x = std::min(begin + j, params_.num_rows - 1);
      float* scales = scales_.data() + j * groups_;
      multiply_scales(weight.scales + row * groups_, params_.x_scales + of_x * groups_, groups_,
                      scales);
      operands.x[j] = params_.x + of_x * groups_ * kInt8Group;
      operands.scales[j] = scales;
    }
    return operands;
  }

  const Int8ProductParams& params_;
  std::int64_t groups_;
  std::vector<float> scales_;
};

// Rows past `last` are computed as the last one, and dropped.
template <int kX>
void multiply_all(const Int8ProductParams& params, std::int64_t first, std::int64_t last,
                  float* y) {
  Product<kX> product(params);
  float sums[kRows * kX];
  for (std::int64_t output = first; output < last; output += kRows) {
    const auto row = [&](std::int64_t i) { return std::min(output + i, last - 1); };
    for (std::int64_t begin = 0; begin < params.num_rows; begin += kX) {
      product.multiply(row, begin, sums);
      for (std::int64_t j = begin; j < std::min(begin + kX, params.num_rows); ++j) {
        for (std::int64_t i = 0; i < kRows && output + i < last; ++i) {
          y[j * (last - first) + output - first + i] = sums[i * kX + j - begin];
        }
      }
    }
  }
}

void multiply_int8(const Int8ProductParams& params, std::int64_t first, std::int64_t last,
                   float* y) {
  return params.num_rows == 1 ? multiply_all<1>(params, first, last, y)
                              : multiply_all<4>(params, first, last, y);
}

#endif

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(multiply_int8);

void int8_product(const Int8ProductParams& params, std::int64_t first, std::int64_t last,
                  float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_int8)(params, first, last, y);
}

}  // namespace kvc
#endif  // HWY_ONCE
