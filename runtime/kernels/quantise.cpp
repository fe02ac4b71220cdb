#include "runtime/kernels/quantise.h"

namespace kvc {

void quantise_rows(const QuantiseParams& params) { quantise_rows_reference(params); }

void dequantise_rows(const DequantiseParams& params) { dequantise_rows_reference(params); }

}  // namespace kvc
