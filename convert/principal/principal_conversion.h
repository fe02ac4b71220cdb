// Conversion of groups with calibrated principal directions: those of the measured covariance, under the
// metric that is asked for; then ranks are shared out and the directions stored.
#pragma once

#include <vector>

#include "convert/conversion_job.h"

namespace kvc {

// As Method::convert.
std::vector<GroupReport> convert_principal_groups(ConversionJob& job);
// Of groups whose basis is found at run time: nothing to measure.
std::vector<GroupReport> report_request_groups(ConversionJob& job);

}  // namespace kvc
