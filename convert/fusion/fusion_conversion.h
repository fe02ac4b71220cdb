// Conversion of a plan's fused layers: measures, fits, refuses, and returns the tensors.
#pragma once

#include <vector>

#include "convert/conversion_job.h"

namespace kvc {

// How a method's fused layers get their factors.
enum class FusionWeights {
  kOnes,    // keys and values as they are
  kFitted,  // by FusionSettings
};

// As Method::convert: the fit of every fused layer goes to job.fused_report. If an R^2 is below
// FusionSettings::min_r2: Error listing every layer's (unless any_fit); with `mixed` such layers become
// plain.
std::vector<GroupReport> convert_fused_layers(ConversionJob& job, FusionWeights weights);

}  // namespace kvc
