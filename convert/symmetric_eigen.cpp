#include "convert/symmetric_eigen.h"

#include <utility>

#include "core/error.h"
#ifdef KVC_CUDA
#include "convert/symmetric_eigen_cuda.h"
#endif

namespace kvc {

SymmetricEigen symmetric_eigen(at::Tensor matrix, std::int64_t num_vectors) {
#ifdef KVC_CUDA
  if (matrix.is_cuda()) {
    const std::int64_t n = matrix.dim() == 2 ? matrix.size(0) : 0;
    KVC_CHECK(n > 0 && matrix.size(1) == n && matrix.scalar_type() == at::kDouble &&
                  num_vectors >= 1 && num_vectors <= n,
              "symmetric_eigen: expected a square float64 matrix and 1 to {} eigenvectors", n);
    const at::Tensor values = syevd_cuda(matrix);
    return {values.flip(0), matrix.narrow(0, n - num_vectors, num_vectors).flip(0)};
  }
#endif
  return symmetric_eigen_cpu(std::move(matrix), num_vectors);
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
