// The factors that rebuild a group's merged latents: the checkpoint's, or bases of the request.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/compression/latent_factors.h"
#include "runtime/store/latent_store.h"

namespace kvc {

// Rows first .. last - 1 of a store's merged latents.
struct MergedLatents {
  std::int64_t first = 0, last = 0;
  Reconstruction layer;
};

// All merged latents, in order; `index` is the layer's in the group. Bases are copies in `dtype`.
std::vector<MergedLatents> merged_latents(const GroupFactors& factors, const LatentStore& store,
                                          int index, at::ScalarType dtype);

}  // namespace kvc
