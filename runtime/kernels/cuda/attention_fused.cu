#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_dense_launch.cuh"

namespace kvc {

LaunchError fused_attention_cuda(const DenseAttention& params, void* stream) {
  if (LaunchError error = check_dense_attention(params, 2); !error.empty()) {
    return error;
  }
  return needs_decoding(params.rows[0].key) ? launch_dense_type<2, true>(params, stream)
                                            : launch_dense_type<2, false>(params, stream);
}

}  // namespace kvc
