// Conversion of a plan's fused layers: measures, fits, refuses, and hands over the tensors.
#pragma once

#include "convert/methods/methods.h"

namespace kvc {

// How a method's fused layers get their factors.
enum class FusionWeights {
  kOnes,    // keys and values as they are
  kFitted,  // as FusionSettings says
};

// As Method::convert: the fit of every fused layer goes to job.result.fused. Error listing every layer's R^2
// where one is below FusionSettings::min_r2 (unless settings.any_fit), or, where `mixed`, such layers become plain.
void convert_fused_layers(ConversionJob& job, FusionWeights weights);

}  // namespace kvc
