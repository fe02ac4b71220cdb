#include "runtime/kernels/cuda/project_rows.h"

#include "runtime/kernels/cuda/device_thread.cuh"
#include "runtime/kernels/cuda/launch.cuh"
#include "runtime/kernels/cuda/project_rows_body.h"

namespace kvc {
namespace {

template <class T>
__global__ void __launch_bounds__(ProductTile::kThreads, 2)
    project_rows_kernel(ProjectRows params) {
  DeviceThread thread;
  project_rows_body<T>(params, thread);
}

}  // namespace

LaunchError project_rows_cuda(const ProjectRows& params, void* stream) {
  const ProductRows& rows = params.rows;
  if (rows.num_parts < 1 || rows.num_parts > ProductRows::kMaxParts || rows.part_width % 8 != 0 ||
      rows.stride % 8 != 0 || params.projection.num_parts != 1 ||
      params.projection.stride % 8 != 0 || params.projection.part_width != rows.width()) {
    return "project_rows: takes 1 to 16 parts, of widths and strides that are multiples of 8, and "
           "a "
           "projection as wide";
  }
  const dim3 grid((params.projection.num_rows + ProductTile::kColumns - 1) / ProductTile::kColumns,
                  (rows.num_rows + ProductTile::kRows - 1) / ProductTile::kRows);
  return launch("project_rows",
                params.element == DeviceElement::kBFloat16 ? project_rows_kernel<BFloat16>
                                                           : project_rows_kernel<Float16>,
                grid, ProductTile::kThreads, ProductTile::kSharedBytes, stream, params);
}

}  // namespace kvc
