// Tokens of coded layers that leave a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/compression/coding.h"

namespace kvc {

// Rows (CodedStore::num_rows) leave. Of what stays as many whole tiles remain codes as coded_tokens says, the rest
// becomes exact again as what the codes stand for. After a generated token one row leaves: the place of a code goes
// to the oldest exact token that is no sink.
void remove_coded_rows(const CodedView& coded, const std::vector<std::int64_t>& rows, bool is_step,
                       CodedStore& store);

}  // namespace kvc
