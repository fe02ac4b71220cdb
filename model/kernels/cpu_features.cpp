#include "model/kernels/cpu_features.h"

#include <atomic>

#include "model/kernels/bfloat16_tiles.h"

#if KVC_HAS_BFLOAT16_TILES
#include <cpuid.h>
#endif

namespace kvc {
namespace {

std::atomic<bool> bf16_allowed{true};

struct Features {
  bool bf16 = false, amx_bf16 = false;
};

Features detect() {
#if KVC_HAS_BFLOAT16_TILES
  unsigned a = 0, b = 0, c = 0, d = 0;
  return {.bf16 = __builtin_cpu_supports("avx512bf16") != 0,
          .amx_bf16 = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0};
#else
  return {};
#endif
}

const Features& features() {
  static const Features all = detect();
  return all;
}

}  // namespace

bool has_bfloat16_products() {
  return features().bf16 && bf16_allowed.load(std::memory_order_relaxed);
}
bool has_bfloat16_amx() { return features().amx_bf16; }

void allow_avx512_bf16(bool allowed) { bf16_allowed = allowed; }

}  // namespace kvc
