// What kernels ask of the processor: whether it has instructions for bfloat16 numbers, and memory before they need it.
#pragma once
#include <cstdint>

namespace kvc {

// Looked up once: a query takes tens of microseconds in a virtual machine.
bool has_bfloat16_products();  // AVX-512 BF16
bool has_bfloat16_amx();       // products of tiles (AMX), faster still, which oneDNN uses

// For tests of what runs without AVX-512 BF16.
void allow_avx512_bf16(bool allowed);

// Fetches the lines of `bytes` bytes into the second level of caches: the first can wait for too few at a
// time to keep memory busy.
inline void fetch_ahead(const void* from, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t i = 0; i < bytes; i += kLine) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(static_cast<const char*>(from) + i, /*to write=*/0, /*level 2=*/2);
#endif
  }
}

}  // namespace kvc
