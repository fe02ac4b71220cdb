// Loops over independent pieces on ATen's threads.
#pragma once

#include <cstdint>
#include <functional>

namespace kvc {

// body(begin, end) over pieces of [0, count), at most one per thread. Pieces run in order of their
// beginnings where there is one thread. ATen's products inside a body use one thread.
void parallel_pieces(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

// The same over chunks of `chunk` that threads take as they are done with others: where cores are not
// equally fast, none waits for the slowest one's share.
void parallel_chunks(std::int64_t count, std::int64_t chunk,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace kvc
