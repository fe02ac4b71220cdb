// Numbers of a tensor's rows as float32, and back.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"
#include "runtime/ops/paged_codes.h"

namespace kvc {

inline std::int64_t row_place(const HeadRows& rows, std::int64_t token, std::int64_t head) {
  return token * rows.token_stride + head * rows.head_stride;
}

inline void load_row(const HeadRows& rows, std::int64_t token, std::int64_t head,
                     std::int64_t count, float* to) {
  const std::int64_t place = row_place(rows, token, head);
  if (rows.element == KvElement::kFloat32) {
    std::copy_n(static_cast<const float*>(rows.data) + place, count, to);
    return;
  }
  const auto* from = static_cast<const std::uint16_t*>(rows.data) + place;
  std::transform(from, from + count, to,
                 rows.element == KvElement::kBFloat16 ? widen_bfloat16 : widen_float16);
}

inline void store_row(const HeadRows& rows, std::int64_t token, std::int64_t head,
                      std::int64_t count, const float* from) {
  const std::int64_t place = row_place(rows, token, head);
  if (rows.element == KvElement::kFloat32) {
    std::copy_n(from, count, static_cast<float*>(rows.data) + place);
    return;
  }
  auto* to = static_cast<std::uint16_t*>(rows.data) + place;
  if (rows.element == KvElement::kBFloat16) {
    std::transform(from, from + count, to, narrow_bfloat16);
  } else {
    std::transform(from, from + count, to,
                   [](float x) { return narrow_float16(x, Rounding::kNearest); });
  }
}

}  // namespace kvc
