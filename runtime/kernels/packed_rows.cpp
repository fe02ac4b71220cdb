#include "runtime/kernels/packed_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/packed_rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>

#include "runtime/kernels/float_product-inl.h"

#ifndef KVC_PACKED_PANEL_
#define KVC_PACKED_PANEL_
namespace kvc {
constexpr std::int64_t kPanelRows = 32;

struct PanelProduct {
  const float* panel;        // [width, kPanelRows]
  std::int64_t width, rows;  // rows: of the panel that are not padding
  const float* x;            // [num_x, width]
  std::int64_t num_x;
  float* out;
  std::int64_t stride;
};
}  // namespace kvc
#endif  // KVC_PACKED_PANEL_

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void multiply_panel(const PanelProduct& of) {
  for (std::int64_t t = 0; t < of.num_x; ++t) {
    for (std::int64_t r = 0; r < of.rows; ++r) {
      float sum = 0;
      for (std::int64_t j = 0; j < of.width; ++j) {
        sum += of.panel[j * kPanelRows + r] * of.x[t * of.width + j];
      }
      of.out[t * of.stride + r] = sum;
    }
  }
}

#else

void multiply_panel(const PanelProduct& of) {
  static_assert(kPanelRows == kColumnsTogether);
  const Factors<float> panel{of.panel, kPanelRows};
  if (of.rows == kPanelRows) {
    return multiply<FloatWords, false>(of.num_x, of.width, kPanelRows, {of.x, of.width}, panel,
                                       {of.out, of.stride});
  }
  float whole[kRowsTogether * kPanelRows];
  for (std::int64_t t = 0; t < of.num_x; t += kRowsTogether) {
    const std::int64_t count = std::min<std::int64_t>(kRowsTogether, of.num_x - t);
    multiply<FloatWords, false>(count, of.width, kPanelRows, {of.x + t * of.width, of.width}, panel,
                                {whole, kPanelRows});
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(whole + i * kPanelRows, of.rows, of.out + (t + i) * of.stride);
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(multiply_panel);

PackedRows::PackedRows(const float* rows, std::int64_t count, std::int64_t width)
    : count_(count), width_(width) {
  const std::int64_t panels = (count + kPanelRows - 1) / kPanelRows;
  panels_.resize(static_cast<std::size_t>(panels * width * kPanelRows));
  for (std::int64_t row = 0; row < count; ++row) {
    float* to = panels_.data() + row / kPanelRows * width * kPanelRows + row % kPanelRows;
    for (std::int64_t j = 0; j < width; ++j) {
      to[j * kPanelRows] = rows[row * width + j];
    }
  }
}

void PackedRows::multiply(const float* x, std::int64_t num_x, float* out,
                          std::int64_t stride) const {
  for (std::int64_t first = 0; first < count_; first += kPanelRows) {
    HWY_DYNAMIC_DISPATCH(multiply_panel)
    ({.panel = panels_.data() + first * width_,
      .width = width_,
      .rows = std::min(kPanelRows, count_ - first),
      .x = x,
      .num_x = num_x,
      .out = out + first,
      .stride = stride});
  }
}

}  // namespace kvc
#endif  // HWY_ONCE
