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

// Rows (CodedStore::num_rows) leave. Of what stays as many whole tiles remain codes as coded_tokens says, the rest
// becomes exact again as what the codes stand for. After a generated token one row leaves: the place of a code goes
// to the oldest exact token that is no sink.
void remove_coded_rows(const CodedCache& cache, const std::vector<std::int64_t>& rows,
                       bool is_step);

}  // namespace kvc
