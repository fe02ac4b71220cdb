// Turns a coded plan and its statistics into widths and tensors of its blocks.
#pragma once

#include "convert/conversion_job.h"

namespace kvc {

// As Method::convert: fits every block's coordinates, distributes the bits of the whole model, and
// fills the plan's blocks and job.factors, one add() per block. Reports go to job.coded_report.
std::vector<GroupReport> convert_coded_blocks(ConversionJob& job);

}  // namespace kvc
