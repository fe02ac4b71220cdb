// Tokens of coded layers that leave a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/store/coded_store.h"

namespace kvc {

// Coded layers of one sequence's cache.
struct CodedCache {
  const Decoder& decoder;
  const KvPlan& plan;
  const CodedFactors& factors;
  CodedStore& store;
};

// Removes rows (CodedStore::num_rows). Remaining codes stay in whole tiles, as many as coded_tokens gives; the rest
// becomes exact with the decoded values. After a generated token one row leaves: the oldest exact token that is no
// sink is coded into the place of a code.
void remove_coded_rows(const CodedCache& cache, const std::vector<std::int64_t>& rows,
                       bool is_step);

}  // namespace kvc
