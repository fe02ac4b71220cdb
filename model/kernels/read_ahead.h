// Memory that a kernel asks for before it needs it.
#pragma once

#include <cstdint>

namespace kvc {

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
