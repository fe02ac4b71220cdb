#include "model/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

namespace kvc {

void parallel_pieces(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  at::parallel_for(0, count, grain,
                   [&](std::int64_t begin, std::int64_t end) { body(begin, end); });
}

void parallel_chunks(std::int64_t count, std::int64_t chunk,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::int64_t threads =
      std::min<std::int64_t>(at::get_num_threads(), (count + chunk - 1) / chunk);
  if (threads <= 1 || at::in_parallel_region()) {
    return body(0, count);
  }
  std::atomic<std::int64_t> next = 0;
  at::parallel_for(0, threads, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t first = next.fetch_add(chunk); first < count; first = next.fetch_add(chunk)) {
      body(first, std::min(first + chunk, count));
    }
  });
}

}  // namespace kvc
