// kvrun --plan: what the KV caches of a run will take, before a weight is read.
#pragma once

#include "runtime/program/run.h"

namespace kvc {

// On standard output, as text or (--json) as {"kv_dtype", "tokens", "reading_bytes", "end_bytes",
// "original_bytes", "kept_ratio", "expansion_bytes"} and, under --memory, {"memory_bytes",
// "expanded_groups", "num_groups", "peak_bytes"}. Error with the numbers where --memory is too little.
void print_memory_plan(const RunOptions& options);

}  // namespace kvc
