#include "model/eigen/symmetric_eigen.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include <map>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

void check_solver(cusolverStatus_t status, const char* call, std::int64_t n) {
  KVC_CHECK(status == CUSOLVER_STATUS_SUCCESS,
            "cuSOLVER: {} failed with status {} for a {} x {} float64 matrix; is the GPU's memory "
            "full? --device cpu needs none",
            call, static_cast<int>(status), n, n);
}

// One cuSOLVER handle and its parameters. Making one takes longer than a small decomposition, so that every
// thread keeps its own.
class Solver {
 public:
  Solver() {
    check_solver(cusolverDnCreate(&handle_), "cusolverDnCreate", 0);
    check_solver(cusolverDnCreateParams(&parameters_), "cusolverDnCreateParams", 0);
    // Equal inputs give equal bits.
    check_solver(cusolverDnSetDeterministicMode(handle_, CUSOLVER_DETERMINISTIC_RESULTS),
                 "cusolverDnSetDeterministicMode", 0);
  }
  ~Solver() {
    if (parameters_ != nullptr) {
      cusolverDnDestroyParams(parameters_);
    }
    if (handle_ != nullptr) {
      cusolverDnDestroy(handle_);
    }
  }
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  // This thread's, for the current device, bound to the current stream.
  static const Solver& current() {
    thread_local std::map<c10::DeviceIndex, Solver> solvers;
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    const Solver& solver = solvers[stream.device_index()];
    check_solver(cusolverDnSetStream(solver.handle(), stream), "cusolverDnSetStream", 0);
    return solver;
  }

  cusolverDnHandle_t handle() const { return handle_; }
  cusolverDnParams_t parameters() const { return parameters_; }

 private:
  cusolverDnHandle_t handle_ = nullptr;
  cusolverDnParams_t parameters_ = nullptr;
};

// cuSOLVER is column-major: the lower triangle of a row-major matrix is its upper one, and the
// eigenvectors it returns as columns are our rows.
constexpr cublasFillMode_t kRowMajorLower = CUBLAS_FILL_MODE_UPPER;

}  // namespace

at::Tensor syevd_cuda(at::Tensor& matrix) {
  const c10::cuda::CUDAGuard guard(matrix.device());
  matrix = matrix.contiguous();
  const std::int64_t n = matrix.size(0);
  at::Tensor values = at::empty({n}, matrix.options());
  const Solver& solver = Solver::current();
  std::size_t device_bytes = 0, host_bytes = 0;
  check_solver(
      cusolverDnXsyevd_bufferSize(solver.handle(), solver.parameters(), CUSOLVER_EIG_MODE_VECTOR,
                                  kRowMajorLower, n, CUDA_R_64F, matrix.data_ptr(), n, CUDA_R_64F,
                                  values.data_ptr(), CUDA_R_64F, &device_bytes, &host_bytes),
      "cusolverDnXsyevd_bufferSize", n);
  const auto bytes = matrix.options().dtype(at::kByte);
  at::Tensor device_buffer = at::empty({static_cast<std::int64_t>(device_bytes)}, bytes);
  std::vector<std::byte> host_buffer(host_bytes);
  at::Tensor info = at::zeros({1}, matrix.options().dtype(at::kInt));
  check_solver(cusolverDnXsyevd(solver.handle(), solver.parameters(), CUSOLVER_EIG_MODE_VECTOR,
                                kRowMajorLower, n, CUDA_R_64F, matrix.data_ptr(), n, CUDA_R_64F,
                                values.data_ptr(), CUDA_R_64F, device_buffer.data_ptr(),
                                device_bytes, host_buffer.data(), host_bytes, info.data_ptr<int>()),
               "cusolverDnXsyevd", n);
  const int failed = info.item<int>();  // waits for the stream
  KVC_CHECK(failed == 0,
            "cuSOLVER: the eigendecomposition of a {} x {} matrix did not converge (info {}); do "
            "the weights or the calibration hold NaN or infinity?",
            n, n, failed);
  return values;
}

}  // namespace kvc
