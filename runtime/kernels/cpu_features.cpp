#include "runtime/kernels/cpu_features.h"

#include <atomic>

namespace kvc {
namespace {

std::atomic<bool> are_allowed{true};

struct Features {
  bool vnni = false, bf16 = false;
};

Features detect() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  return {.vnni = __builtin_cpu_supports("avx512vnni") != 0 &&
                  __builtin_cpu_supports("avx512vbmi") != 0,
          .bf16 = __builtin_cpu_supports("avx512bf16") != 0};
#else
  return {};
#endif
}

const Features& features() {
  static const Features all = detect(), none;
  return are_allowed.load(std::memory_order_relaxed) ? all : none;
}

}  // namespace

bool has_avx512_vnni() { return features().vnni; }
bool has_avx512_bf16() { return features().bf16; }

void allow_special_instructions(bool allowed) { are_allowed = allowed; }

}  // namespace kvc
