// The type in which a factor is written.
#pragma once

#include <string>

#include "export/factor_file.h"

namespace kvc {

// UsageError unless `name` is auto, float32, bfloat16 or float16.
void check_factor_dtype(const std::string& name);
// auto: each is written in the cheapest form; for coded blocks these are the codes that the conversion made.
bool chooses_factor_type(const std::string& name);

// The type that `name` names. Under auto: float16 for matrices whose every row and column it holds with at most a
// millionth of squared error, otherwise float32, as for vectors (means, steps).
at::ScalarType factor_type(const FactorFile& factors, const TensorInfo& factor,
                           const std::string& name);

}  // namespace kvc
