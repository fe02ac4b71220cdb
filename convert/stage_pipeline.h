// Processes items in overlapping stages: while one item is in the second stage, the next is in the first.
// Stages choose their own devices. Does not use torch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace kvc {

using StageFunction = std::function<void(std::int64_t item)>;

// Every item 0 .. count - 1 goes through `stages`, one after the other, and then through `last`. A stage takes
// items in order, one at a time, on a thread of its own; `last` runs on the caller's. At most `ahead` items
// are between start and the end of `last`, which bounds memory; with ahead <= 1 everything runs on the
// caller's thread without overlap. The order of work within a stage, and thus its result, stays the same. The
// first error ends all stages and is thrown here after their threads ended.
void run_overlapped(std::int64_t count, std::int64_t ahead,
                    const std::vector<StageFunction>& stages, const StageFunction& last);

}  // namespace kvc
