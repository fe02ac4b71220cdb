// Conversion of groups with calibrated principal directions: of the measured covariance, under the
// requested metric; then ranks are allocated and the directions stored.
#pragma once

#include <vector>

#include "convert/conversion_job.h"

namespace kvc {

// As Method::convert.
std::vector<GroupReport> convert_principal_groups(ConversionJob& job);
// For groups whose basis is found at run time: nothing to measure.
std::vector<GroupReport> report_request_groups(ConversionJob& job);

}  // namespace kvc
