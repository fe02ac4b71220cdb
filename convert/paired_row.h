// Paired layers in the table of --plan.
#pragma once

#include "convert/methods/methods.h"

namespace kvc {

// As Method::fill_table.
void fill_paired_table(PlanTable& table, const PlanRequest& request);

}  // namespace kvc
