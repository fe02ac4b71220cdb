// Kernels for codes in the pages of an engine's cache.
#include "runtime/kernels/cuda/cuda_launcher.cuh"
#include "runtime/kernels/cuda/paged_attention_kernel.h"
#include "runtime/kernels/cuda/paged_encode_kernel.h"
#include "runtime/kernels/cuda/paged_read_kernel.h"
#include "runtime/kernels/cuda/paged_store_kernel.h"

namespace kvc {

template LaunchError launch_cuda(const AttendOpen&, void*);
template LaunchError launch_cuda(const EncodeTokens&, void*);
template LaunchError launch_cuda(const PlacePages&, void*);
template LaunchError launch_cuda(const ReadTokens&, void*);
template LaunchError launch_cuda(const StoreCodes&, void*);

}  // namespace kvc
