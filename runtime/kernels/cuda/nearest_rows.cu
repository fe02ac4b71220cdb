#include "runtime/kernels/cuda/nearest_rows.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/nearest_rows_body.h"

namespace kvc {
namespace {

constexpr int kJoinThreads = 128;

template <class T>
__global__ void __launch_bounds__(ProductTile::kThreads, 2)
    nearest_rows_kernel(NearestRows params) {
  DeviceThread thread;
  nearest_rows_body<T>(params, thread);
}

__global__ void __launch_bounds__(kJoinThreads) join_nearest_kernel(NearestRows params) {
  DeviceThread thread;
  join_nearest_body(params, thread);
}

}  // namespace

LaunchError nearest_rows_cuda(const NearestRows& params, void* stream) {
  const auto fits = [](const ProductRows& rows) {
    return rows.num_parts == 1 && rows.part_width % 8 == 0 && rows.stride % 8 == 0;
  };
  if (!fits(params.rows) || !fits(params.others) ||
      params.rows.part_width != params.others.part_width || params.others.num_rows < 1) {
    return "nearest_rows: takes two matrices of equal width, a multiple of 8, and at least one row "
           "to choose";
  }
  const dim3 grid((params.rows.num_rows + ProductTile::kRows - 1) / ProductTile::kRows,
                  params.num_parts);
  const LaunchError error =
      launch("nearest_rows",
             params.element == DeviceElement::kBFloat16 ? nearest_rows_kernel<BFloat16>
                                                        : nearest_rows_kernel<Float16>,
             grid, ProductTile::kThreads, kNearestSharedBytes, stream, params);
  if (!error.empty()) {
    return error;
  }
  return launch("join_nearest", join_nearest_kernel,
                dim3((params.rows.num_rows + kJoinThreads - 1) / kJoinThreads), kJoinThreads, 0,
                stream, params);
}

}  // namespace kvc
