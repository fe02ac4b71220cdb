// Conversion of a plan's fused layers: measures, fits, refuses, and hands over the tensors.
#pragma once

#include <vector>

#include "convert/conversion_job.h"

namespace kvc {

// How a method's fused layers get their factors.
enum class FusionWeights {
  kOnes,    // keys and values as they are
  kFitted,  // as FusionSettings says
};

// As Method::convert: the fit of every fused layer goes to job.fused_report. Error listing every layer's R^2
// where one is below FusionSettings::min_r2 (unless any_fit), or, where `mixed`, such layers become plain.
std::vector<GroupReport> convert_fused_layers(ConversionJob& job, FusionWeights weights);

}  // namespace kvc
