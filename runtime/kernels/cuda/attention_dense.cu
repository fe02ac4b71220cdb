#include "runtime/kernels/cuda/attention_dense.h"

#include "runtime/kernels/cuda/attention_dense_launch.cuh"

namespace kvc {

LaunchError dense_attention_cuda(const DenseAttention& params, void* stream) {
  if (LaunchError error = check_dense_attention(params, 1); !error.empty()) {
    return error;
  }
  return needs_decoding(params.rows[0].key) ? launch_dense_type<1, true>(params, stream)
                                            : launch_dense_type<1, false>(params, stream);
}

}  // namespace kvc
