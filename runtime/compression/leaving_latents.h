// Tokens of a latent group that leave a cache and merge into residual slots (ZeroMerge).
#pragma once

#include <cstdint>
#include <vector>

#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/latent_store.h"

namespace kvc {

// A group of one sequence's cache.
struct GroupCache {
  const Decoder& decoder;
  const KvPlan& plan;
  int group = 0;
  const GroupFactors& factors;
  LatentStore& store;
};

// Latents of rows, ascending, for the whole group: stored ones of merged rows; for others those that merging
// would give. [rows, rank] float32
at::Tensor latents_of_rows(const GroupCache& cache, const std::vector<std::int64_t>& rows);

// Merges rows, ascending by position, into slots: the one whose rebuilt keys, before RoPE and summed over the
// group's layers, are most similar, or the first free one; with `in_runs` equally many neighbours each. A slot's
// latent and position are its members' means.
void merge_into_slots(const GroupCache& cache, const std::vector<std::int64_t>& rows, bool in_runs);

}  // namespace kvc
