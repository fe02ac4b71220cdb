#include "runtime/kernels/cuda/append_rows_kernel.h"
#include "runtime/kernels/cuda/budget_step_kernel.h"
#include "runtime/kernels/cuda/code_tiles_kernel.h"
#include "runtime/kernels/cuda/dequantise_rows_kernel.h"
#include "runtime/kernels/cuda/few_rows_product_kernel.h"
#include "runtime/kernels/cuda/paged_attention_kernel.h"
#include "runtime/kernels/cuda/paged_encode_kernel.h"
#include "runtime/kernels/cuda/paged_read_kernel.h"
#include "runtime/kernels/cuda/paged_store_kernel.h"
#include "runtime/kernels/cuda/quantise_rows_kernel.h"
#include "runtime/kernels/cuda/residual_rows_kernel.h"
#include "runtime/kernels/cuda/row_cosines_kernel.h"
#include "runtime/kernels/cuda/sample_tokens_kernel.h"
#include "tests/runtime/kernels/cuda/emulated_launcher.h"

namespace kvc::testing {

template LaunchError launch_emulated(const AppendLatents&, ThreadOrder);
template LaunchError launch_emulated(const AppendRows&, ThreadOrder);
template LaunchError launch_emulated(const AttendOpen&, ThreadOrder);
template LaunchError launch_emulated(const BudgetStep&, ThreadOrder);
template LaunchError launch_emulated(const DecodeTiles&, ThreadOrder);
template LaunchError launch_emulated(const DequantiseRows&, ThreadOrder);
template LaunchError launch_emulated(const EmbedRows&, ThreadOrder);
template LaunchError launch_emulated(const EncodeTokens&, ThreadOrder);
template LaunchError launch_emulated(const FewRowsProduct&, ThreadOrder);
template LaunchError launch_emulated(const NormRows&, ThreadOrder);
template LaunchError launch_emulated(const PlacePages&, ThreadOrder);
template LaunchError launch_emulated(const QuantiseRows&, ThreadOrder);
template LaunchError launch_emulated(const ReadTokens&, ThreadOrder);
template LaunchError launch_emulated(const RowCosines&, ThreadOrder);
template LaunchError launch_emulated(const SampleTokens&, ThreadOrder);
template LaunchError launch_emulated(const StoreCodes&, ThreadOrder);

}  // namespace kvc::testing
