#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/merge_scores.h"
#include "runtime/kernels/cuda/merge_scores_body.h"

namespace kvc {
namespace {

constexpr int kJoinThreads = 128;

template <class T>
__global__ void __launch_bounds__(ProductTile::kThreads, 2) lost_rows_kernel(LostRows params) {
  DeviceThread thread;
  lost_rows_body<T>(params, thread);
}

__global__ void __launch_bounds__(kJoinThreads) join_lost_kernel(LostRows params) {
  DeviceThread thread;
  join_lost_body(params, thread);
}

}  // namespace

LaunchError lost_rows_cuda(const LostRows& params, void* stream) {
  const ProductRows &h = params.latents, &b = params.reconstruct;
  if (h.num_parts != 1 || b.num_parts != 1 || h.part_width != b.part_width ||
      h.part_width % 8 != 0 || h.stride % 8 != 0 || b.stride % 8 != 0 ||
      params.exact.width() != b.num_rows) {
    return "lost_rows: takes latents and a reconstruction of one rank, a multiple of 8, and as "
           "many exact "
           "channels as are rebuilt";
  }
  const dim3 grid((b.num_rows + ProductTile::kColumns - 1) / ProductTile::kColumns,
                  (h.num_rows + ProductTile::kRows - 1) / ProductTile::kRows);
  const LaunchError error =
      launch("lost_rows",
             params.element == DeviceElement::kBFloat16 ? lost_rows_kernel<BFloat16>
                                                        : lost_rows_kernel<Float16>,
             grid, ProductTile::kThreads, ProductTile::kSharedBytes, stream, params);
  if (!error.empty()) {
    return error;
  }
  return launch("join_lost", join_lost_kernel, dim3((h.num_rows + kJoinThreads - 1) / kJoinThreads),
                kJoinThreads, 0, stream, params);
}

}  // namespace kvc
