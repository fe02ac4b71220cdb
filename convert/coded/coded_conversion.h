// From a coded plan and what was measured to its blocks' widths and tensors.
#pragma once

#include "convert/conversion_job.h"

namespace kvc {

// As Method::convert: fits every block's coordinates, shares out the bits of the whole model, fills the
// plan's blocks and job.factors, one add() for every block. Its reports are job.coded_report.
std::vector<GroupReport> convert_coded_blocks(ConversionJob& job);

}  // namespace kvc
