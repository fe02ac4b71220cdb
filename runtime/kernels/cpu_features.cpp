#include "runtime/kernels/cpu_features.h"

#include <atomic>

namespace kvc {
namespace {

std::atomic<bool> vnni_allowed{true};

bool detect_avx512_vnni() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  return __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
#else
  return false;
#endif
}

}  // namespace

bool has_avx512_vnni() {
  static const bool has = detect_avx512_vnni();
  return has && vnni_allowed.load(std::memory_order_relaxed);
}

void allow_avx512_vnni(bool allowed) { vnni_allowed = allowed; }

}  // namespace kvc
