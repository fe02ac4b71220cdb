// How fast the cache kernels and cuSOLVER's eigendecomposition are, as ratios to what this GPU can do in the same
// run: copying memory, and multiplying matrices through cuBLAS. Needs the CUDA toolkit and nothing else.
//
//   cuda_cache_bench [--json FILE]      exit code 77: there is no GPU
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include <algorithm>
#include <functional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/gpu_backend.h"
#include "tests/runtime/kernels/cuda/gpu_budget_bench.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/gpu_timing.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

void require(const LaunchError& error) {
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
}
void require(bool done, const char* what) {
  if (!done) {
    throw std::runtime_error(what);
  }
}

std::vector<std::uint16_t> random_numbers(std::size_t count) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> numbers(count);
  for (std::uint16_t& x : numbers) {
    x = narrow_bits(BFloat16{}, normal(generator));
  }
  return numbers;
}

// Random bfloat16 numbers, the same again after kRandom of them; parts of it are the inputs of all.
struct Inputs {
  explicit Inputs(GpuBackend& memory)
      : numbers(static_cast<std::uint16_t*>(memory.allocate(2 * kCount))) {
    const std::vector<std::uint16_t> random = random_numbers(kRandom);
    for (std::size_t first = 0; first < kCount; first += kRandom) {
      memory.write(numbers + first, random.data(), 2 * std::min(kRandom, kCount - first));
    }
  }
  static constexpr std::size_t kCount = std::size_t{1} << 28, kRandom = (std::size_t{1} << 24) + 64;
  std::uint16_t* numbers;

  ProductRows matrix(std::size_t first, int rows, int width) const {
    ProductRows product;
    product.parts[0] = numbers + first;
    product.part_width = width;
    product.stride = width;
    product.num_rows = rows;
    return product;
  }
};

class Bench {
 public:
  Bench() : inputs_(memory_) {
    require(cublasCreate(&blas_) == CUBLAS_STATUS_SUCCESS, "cublasCreate failed");
  }
  ~Bench() { cublasDestroy(blas_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  TimingReport run() {
    find_ceilings();
    quantise();
    for (const int tokens : {8192, 32768}) {
      nearest(tokens);
    }
    project();
    for (const int slots : {1638, 4096}) {
      budget(1, slots);
      budget(16, slots);
    }
    eigen();
    return report_;
  }

 private:
  // C = A B^T, row-major, of 16-bit numbers.
  void multiply(int rows, int columns, int width, void* to) {
    const float one = 1, zero = 0;
    require(cublasGemmEx(blas_, CUBLAS_OP_T, CUBLAS_OP_N, columns, rows, width, &one,
                         inputs_.numbers, CUDA_R_16BF, width, inputs_.numbers + Inputs::kCount / 2,
                         CUDA_R_16BF, width, &zero, to, CUDA_R_16BF, columns, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS,
            "cublasGemmEx failed");
  }

  void find_ceilings() {
    const std::size_t bytes = std::size_t{1} << 30;
    void *from = memory_.allocate(bytes), *to = memory_.allocate(bytes);
    const int n = 8192;
    void* product = memory_.allocate(std::size_t{2} * n * n);
    const std::vector<double> ms = median_times(
        {[&] { check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice), "copy"); },
         [&] { multiply(n, n, 4096, product); }},
        3);
    copy_rate_ = 2.0 * static_cast<double>(bytes) / ms[0];
    product_rate_ = 2.0 * n * n * 4096.0 / ms[1];
    report_.add("copy of 1 GiB", ms[0], copy_rate_ * 1e-6, "GB/s", "ceiling");
    report_.add("cuBLAS bf16 8192 x 8192 x 4096", ms[1], product_rate_ * 1e-9, "TFLOP/s",
                "ceiling");
  }

  void quantise() {
    const int width = 1024, count = 32768;
    QuantiseRows params{
        .from = inputs_.numbers, .from_element = DeviceElement::kBFloat16, .to = {}};
    params.count = count;
    for (const DeviceElement element : {DeviceElement::kInt8, DeviceElement::kInt4}) {
      const int row_bytes = channel_bytes(element, width) + width / 8;
      void* block = memory_.allocate(static_cast<std::size_t>(row_bytes) * count);
      params.to = {
          memory_.upload(std::vector<const void*>{block}), 1, count, width, element, false, 1};
      const double ms = median_times({[&] { require(launch_cuda(params, nullptr)); }}, 5)[0];
      const double bytes = static_cast<double>(count) * (2 * width + row_bytes);
      report_.add(element == DeviceElement::kInt8 ? "quantise 32k x 1024 to int8"
                                                  : "quantise 32k x 1024 to int4",
                  ms, bytes / ms / copy_rate_, "copy", "");
    }
  }

  void nearest(int tokens) {
    const int width = 4096;
    const auto count = static_cast<std::size_t>(tokens);
    const int parts = tokens < 16384 ? 4 : 1;
    NearestRows params{
        .rows = inputs_.matrix(0, tokens, width),
        .others = inputs_.matrix(Inputs::kCount / 2, tokens, width),
        .num_parts = parts,
        .part_product = static_cast<float*>(memory_.allocate(4 * count * parts)),
        .part_match = static_cast<std::int32_t*>(memory_.allocate(4 * count * parts)),
        .product = static_cast<float*>(memory_.allocate(4 * count)),
        .match = static_cast<std::int32_t*>(memory_.allocate(4 * count))};
    const double ms = median_times({[&] { require(launch_cuda(params, nullptr)); }}, 1)[0];
    report_.add("nearest of " + std::to_string(tokens) + " tokens, width 4096", ms,
                2.0 * tokens * static_cast<double>(tokens) * width / ms / product_rate_, "cuBLAS",
                "G8: at least 0.5");
  }

  void project() {
    const int tokens = 4096, width = 8192, rank = 2816;
    ProjectRows params{.rows = inputs_.matrix(0, tokens, width),
                       .projection = inputs_.matrix(Inputs::kCount / 2, rank, width),
                       .output = memory_.allocate(std::size_t{2} * tokens * rank)};
    void* to = memory_.allocate(std::size_t{2} * tokens * rank);
    const std::vector<double> ms = median_times({[&] { require(launch_cuda(params, nullptr)); },
                                                 [&] { multiply(tokens, rank, width, to); }},
                                                3);
    report_.add("project 4096 x 8192 to rank 2816", ms[0], ms[1] / ms[0],
                "cuBLAS of the same shape", "");
  }

  void budget(int sequences, int slots) {
    const std::vector<double> times =
        budget_step_milliseconds(memory_, sequences, slots, {8192, 131072});
    const double bytes = 4.0 * sequences * kBudgetKvHeads * kBudgetHeadDim * slots;
    const std::string name = "budget step, " + std::to_string(sequences) + " sequences, " +
                             std::to_string(slots) + " slots";
    report_.add(name + ", 8k tokens", times[0], bytes / times[0] / copy_rate_, "copy", "");
    report_.add(name + ", 128k tokens", times[1], times[1] / times[0], "8k tokens",
                "G6: at most 1.03");
  }

  // Eight groups of a model of hidden_size 4096: what the conversion's second stage does.
  void eigen() {
    const std::int64_t n = 4096;
    std::mt19937 generator(2);
    std::normal_distribution<double> normal;
    std::vector<double> host(static_cast<std::size_t>(n * n));
    for (double& x : host) {
      x = normal(generator);
    }
    const double* source = memory_.upload(host);
    double* matrix = static_cast<double*>(memory_.allocate(host.size() * 8));
    double* values = static_cast<double*>(memory_.allocate(static_cast<std::size_t>(n) * 8));
    int* info = static_cast<int*>(memory_.allocate(4));
    cusolverDnHandle_t solver;
    cusolverDnParams_t parameters;
    require(cusolverDnCreate(&solver) == 0 && cusolverDnCreateParams(&parameters) == 0,
            "cusolverDnCreate failed");
    std::size_t device_bytes = 0, host_bytes = 0;
    require(cusolverDnXsyevd_bufferSize(
                solver, parameters, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, n, CUDA_R_64F,
                matrix, n, CUDA_R_64F, values, CUDA_R_64F, &device_bytes, &host_bytes) == 0,
            "cusolverDnXsyevd_bufferSize failed");
    void* device_buffer = memory_.allocate(device_bytes);
    std::vector<std::uint8_t> host_buffer(host_bytes);
    const auto solve = [&] {
      check_cuda(cudaMemcpyAsync(matrix, source, host.size() * 8, cudaMemcpyDeviceToDevice),
                 "copy");
      require(
          cusolverDnXsyevd(solver, parameters, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, n,
                           CUDA_R_64F, matrix, n, CUDA_R_64F, values, CUDA_R_64F, device_buffer,
                           device_bytes, host_buffer.data(), host_bytes, info) == 0,
          "cusolverDnXsyevd failed");
    };
    const double ms = median_times({solve}, 1)[0];
    report_.add("eigenpairs of eight 4096 x 4096 in float64", 8 * ms, 8 * ms / 5000, "5 s",
                "G9: at most 1");
    cusolverDnDestroyParams(parameters);
    cusolverDnDestroy(solver);
  }

  GpuBackend memory_;
  Inputs inputs_;
  cublasHandle_t blas_ = nullptr;
  TimingReport report_;
  double copy_rate_ = 0, product_rate_ = 0;  // bytes and operations per millisecond
};

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  return kvc::testing::gpu_bench_main(argc, argv,
                                      [] { return kvc::testing::Bench().run().json(); });
}
