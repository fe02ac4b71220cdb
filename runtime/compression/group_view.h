// A latent group of one sequence's cache, with what makes and rebuilds its latents.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/latent_store.h"

namespace kvc {

struct GroupView {
  const Decoder& decoder;
  const KvPlan& plan;
  int group = 0;
  const GroupFactors& factors;
  const LatentStore& store;

  const LatentGroup& spec() const { return plan.groups[static_cast<std::size_t>(group)]; }
  int layer(int index) const { return spec().first_layer + index; }
};

// Rows first .. last - 1 of a store's merged latents, and what rebuilds them: the checkpoint's factors, or a basis of the
// request.
struct MergedLatents {
  std::int64_t first = 0, last = 0;
  Reconstruction layer;
};

// All merged latents, in order; `index` is the layer's in the group. Bases are copies in `dtype`.
std::vector<MergedLatents> merged_latents(const GroupFactors& factors, const LatentStore& store,
                                          int index, at::ScalarType dtype);

}  // namespace kvc
