// Conversion of groups with calibrated principal directions: those of the measured covariance, under the
// metric that is asked for; then ranks are shared out and the directions stored.
#pragma once

#include "convert/methods/methods.h"

namespace kvc {

// As Method::convert.
void convert_principal_groups(ConversionJob& job);
// Of groups whose basis is found at run time: nothing to measure.
void report_request_groups(ConversionJob& job);

}  // namespace kvc
