// Tokens of coded layers that leave a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/compression/coding.h"

namespace kvc {

// Removes rows (CodedStore::num_rows). Remaining codes stay in whole tiles, as many as coded_tokens gives; the rest
// becomes exact with the decoded values. After a generated token one row leaves: the oldest exact token that is no
// sink is coded into the place of a code.
void remove_coded_rows(const CodedView& coded, const std::vector<std::int64_t>& rows, bool is_step,
                       CodedStore& store);

}  // namespace kvc
