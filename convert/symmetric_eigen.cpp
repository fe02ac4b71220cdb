#include "convert/symmetric_eigen.h"

#include "core/error.h"
#ifdef KVC_CUDA
#include "convert/symmetric_eigen_cuda.h"
#endif

namespace kvc {

SymmetricEigen symmetric_eigen(at::Tensor matrix) {
  KVC_CHECK(
      matrix.dim() == 2 && matrix.size(0) == matrix.size(1) && matrix.scalar_type() == at::kDouble,
      "symmetric_eigen: expected a square float64 matrix");
#ifdef KVC_CUDA
  if (matrix.is_cuda()) {
    const at::Tensor values = syevd_cuda(matrix);
    return {values.flip(0), matrix.flip(0)};
  }
#endif
  at::Tensor values, vectors;
  try {
    std::tie(values, vectors) = at::linalg_eigh(matrix, "L");
  } catch (const c10::Error& error) {
    fail(
        "the eigendecomposition of a {} x {} matrix failed ({}); do the weights or the "
        "calibration hold NaN or infinity?",
        matrix.size(0), matrix.size(1), error.what_without_backtrace());
  }
  matrix.reset();
  return {values.flip(0), vectors.t().flip(0)};  // LAPACK's columns are the rows of the transpose
}

at::Device factor_device(const std::string& name) {
  if (name == "cpu") {
    return at::kCPU;
  }
  KVC_CHECK_USAGE(name == "cuda" || (name.rfind("cuda:", 0) == 0 && name.size() > 5 &&
                                     name.find_first_not_of("0123456789", 5) == std::string::npos &&
                                     name.size() < 9),
                  "--device {}: expected cpu, cuda or cuda:N", name);
#ifdef KVC_CUDA
  const int index = name.size() > 5 ? std::stoi(name.substr(5)) : 0;
  check_cuda_usable(index);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
#else
  fail(
      "--device {}: this build has no GPU support; configure with `cmake --preset cuda` (needs a "
      "CUDA toolkit), or use --device cpu",
      name);
#endif
}

}  // namespace kvc
