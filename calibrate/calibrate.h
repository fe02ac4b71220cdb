// kvcalibrate: statistics of a checkpoint's projection inputs and of its keys and values, layer by layer.
//
// calibration.h5 (all sums float64, counts int64; sums and counts, never means, so files add up):
//   /                               provenance (core/provenance.h)
//   /num_tokens                     int64 scalar as [1]
//   /layers/<l>/gram                [hidden_size, hidden_size]  sum x x^T, x = input of k_proj
//   /layers/<l>/key_sum, value_sum  [kv_dim]                    sum of pre-RoPE keys (pre-norm, with bias) / values
//   /layers/<l>/key_second_moment, value_second_moment  [kv_dim, kv_dim]
//   /pairs/<l>/...                  layer l with layer l+1: key_cross, value_cross [kv_dim, kv_dim] = sum a_l a_{l+1}^T,
//                                   key_cosine_sum, value_cosine_sum [1] = sum over tokens of cos(a_l, a_{l+1})
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/provenance.h"
#include "core/token_set.h"
#include "model/compute_place.h"

namespace kvc {

// What calibrate() will stamp on its artifact; the pipeline compares it to resume.
Provenance calibration_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                                  const ComputePlace& place = {});
// Layer-streamed: one layer's weights and sums are held, one boundary of the residual stream and
// one layer's keys and values (both spilled to disk when large). Every sequence runs alone, so that
// its part of the sums does not depend on the others. Products are of `place`'s dtype, sums over tokens
// float64: in bfloat16 they differ from those of float32 by what bfloat16 activations differ, about 1 %.
void calibrate(const Checkpoint& checkpoint, const TokenSet& tokens,
               const std::filesystem::path& out, bool force, const ComputePlace& place = {});

// Sums of several runs over the same checkpoint. The result equals one run over all their tokens.
void add_calibrations(const std::vector<std::filesystem::path>& files,
                      const std::filesystem::path& out, bool force);

// Similarity of layer l and layer l+1, from the sums. Values in [-1, 1] (cosine), [0, 1] (linear
// CKA).
struct LayerSimilarity {
  double key_cosine = 0, value_cosine = 0, key_cka = 0, value_cka = 0;
};
std::vector<LayerSimilarity> layer_similarity(const std::filesystem::path& calibration,
                                              int num_layers, std::int64_t kv_dim);

// {"num_tokens", "num_layers", "similarity": [{"layer", "next_layer", "key_cosine", ...}]}
Json calibration_summary(const std::filesystem::path& calibration);

}  // namespace kvc
