// Least squares of a layer's keys or values on those of other layers, from sums alone.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "convert/fusion/fusion_moments.h"
#include "convert/fusion/fusion_plan.h"

namespace kvc {

// Fits the keys or values of `layer` by those of `sources`.
struct FusionFit {
  std::vector<int> sources;  // ascending
  at::Tensor heads;          // [sources, num_kv_heads] int64: KV heads read
  at::Tensor weight;         // as Fusion::weight of its form, float64
  double r2 = 0;             // 1 - sum of squared errors / sum of squares about the channels' means
};

// One factor per channel of values, and per RoPE pair of keys (form channel) or a complex one (form
// complex); channels of keys that RoPE leaves alone are as those of values. Solves
// (M_FF + 1e-6 tr(M_FF) / |F|) a = M_Fi per channel or pair.
FusionFit fit_vectors(const FusionMoments& moments, KvPart part, int layer,
                      const std::vector<int>& sources, FusionForm form, HeadMap head_map);
// The pair of `candidates` (one or more) that fits best with HeadMap::kSame, fitted with `head_map`; a single one if there is no
// other.
FusionFit search_sources(const FusionMoments& moments, KvPart part, int layer,
                         const std::vector<int>& candidates, FusionForm form, HeadMap head_map);
// Every factor is one: the error of reading the sources' sum.
FusionFit fit_ones(const FusionMoments& moments, KvPart part, int layer,
                   const std::vector<int>& sources);
// A matrix over all channels of all sources, damped likewise by 1e-6 of the mean square.
FusionFit fit_matrices(const FusionMoments& moments, KvPart part, int layer,
                       const std::vector<int>& sources);

}  // namespace kvc
