// Work on a row of items in stages that overlap: while one item is in the second stage, the next is in the
// first. Which devices the stages use is theirs to know. Needs no torch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace kvc {

using StageFunction = std::function<void(std::int64_t item)>;

// Every item 0 .. count - 1 goes through `stages`, one after the other, and then through `last`. A stage takes
// items in order, one at a time, on a thread of its own; `last` runs on the caller's. At most `ahead` items
// have begun and not left `last`, which bounds what is held; with ahead 1 or less nothing overlaps, and all
// runs on the caller's thread. The order of work within a stage, and so its result, is the same either way.
// The first error of any of them ends all and is thrown here, once no thread of theirs runs.
void run_pipeline(std::int64_t count, std::int64_t ahead, const std::vector<StageFunction>& stages,
                  const StageFunction& last);

}  // namespace kvc
