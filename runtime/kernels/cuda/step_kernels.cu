// Kernels of a decoding step beside attention.
#include "runtime/kernels/cuda/append_rows_kernel.h"
#include "runtime/kernels/cuda/attention_combine_kernel.h"
#include "runtime/kernels/cuda/attention_project_kernel.h"
#include "runtime/kernels/cuda/cuda_launcher.cuh"
#include "runtime/kernels/cuda/few_rows_product_kernel.h"
#include "runtime/kernels/cuda/residual_rows_kernel.h"
#include "runtime/kernels/cuda/row_cosines_kernel.h"
#include "runtime/kernels/cuda/sample_tokens_kernel.h"

namespace kvc {

template LaunchError launch_cuda(const AppendLatents&, void*);
template LaunchError launch_cuda(const AppendRows&, void*);
template LaunchError launch_cuda(const CombinePartials&, void*);
template LaunchError launch_cuda(const EmbedRows&, void*);
template LaunchError launch_cuda(const FewRowsProduct&, void*);
template LaunchError launch_cuda(const NormRows&, void*);
template LaunchError launch_cuda(const ProjectValues&, void*);
template LaunchError launch_cuda(const RowCosines&, void*);
template LaunchError launch_cuda(const SampleTokens&, void*);

}  // namespace kvc
