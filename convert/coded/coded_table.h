// Coded layers in the table of --plan.
#pragma once

#include "convert/methods/methods.h"

namespace kvc {

// As Method::fill_table.
void fill_coded_table(PlanTable& table, const PlanRequest& request);

}  // namespace kvc
