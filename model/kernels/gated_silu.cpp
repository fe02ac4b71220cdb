#include "model/kernels/gated_silu.h"

#include <algorithm>
#include <cmath>

#include "model/kernels/cpu_features.h"
#include "model/kernels/element.h"
#include "model/kernels/tile_softmax.h"

#if KVC_HAS_BFLOAT16_TILES
KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {
namespace {

__m512 floats(__m256i numbers) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
}

__m256i rounded(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

void multiply_gated(const std::uint16_t* gate, const std::uint16_t* up, std::int64_t count,
                    std::uint16_t* out) {
  const __m512 most = _mm512_set1_ps(150), least = _mm512_set1_ps(-150);  // 2^most is infinite
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const auto mask = static_cast<__mmask16>((std::uint32_t{1} << std::min(kLanes, count - i)) - 1);
    const __m512 x = floats(_mm256_maskz_loadu_epi16(mask, gate + i));
    const __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(-kLog2E));
    const __m512 exponential = exp2_of(_mm512_max_ps(_mm512_min_ps(power, most), least));
    const __m512 silu = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1), exponential));
    const __m512 factor = floats(_mm256_maskz_loadu_epi16(mask, up + i));
    _mm256_mask_storeu_epi16(out + i, mask, rounded(_mm512_mul_ps(floats(rounded(silu)), factor)));
  }
}

}  // namespace
}  // namespace kvc
HWY_POP_ATTRIBUTES
#endif  // KVC_HAS_BFLOAT16_TILES

namespace kvc {

bool gated_silu_is_fast() { return has_bfloat16_products(); }

void gated_silu(const std::uint16_t* gate, const std::uint16_t* up, std::int64_t count,
                std::uint16_t* out) {
#if KVC_HAS_BFLOAT16_TILES
  if (gated_silu_is_fast()) {
    return multiply_gated(gate, up, count, out);
  }
#endif
  gated_silu_reference(gate, up, count, out);
}

void gated_silu_reference(const std::uint16_t* gate, const std::uint16_t* up, std::int64_t count,
                          std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = float_of_bfloat16(gate[i]);
    const std::uint16_t silu = bfloat16_of(x / (1 + std::exp(-x)));
    out[i] = bfloat16_of(float_of_bfloat16(silu) * float_of_bfloat16(up[i]));
  }
}

}  // namespace kvc
