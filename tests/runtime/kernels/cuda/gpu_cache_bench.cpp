// How fast the cache kernels and cuSOLVER's eigendecomposition are; the kernels as ratios to copying memory in the same
// run. Needs the CUDA toolkit and nothing else.
//
//   cuda_cache_bench [--json FILE]      exit code 77: there is no GPU
#include <cuda_runtime_api.h>
#ifndef KVC_NO_PEER
#include <cusolverDn.h>
#endif

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

class Bench {
 public:
  TimingReport run() {
    find_ceiling();
    quantise();
    for (const int slots : {1638, 4096}) {
      budget(1, slots);
      budget(16, slots);
    }
#ifndef KVC_NO_PEER
    eigen();
#endif
    return report_;
  }

 private:
  void find_ceiling() {
    const std::size_t bytes = std::size_t{1} << 30;
    void *from = memory_.allocate(bytes), *to = memory_.allocate(bytes);
    const double ms = median_times(
        {[&] { check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice), "copy"); }},
        3)[0];
    copy_rate_ = 2.0 * static_cast<double>(bytes) / ms;
    report_.add("copy of 1 GiB", ms, copy_rate_ * 1e-6, "GB/s", "ceiling");
  }

  void quantise() {
    const int width = 1024, count = 32768;
    QuantiseRows params{.from = memory_.upload(random_numbers(std::size_t{count} * width)),
                        .from_element = DeviceElement::kBFloat16,
                        .to = {}};
    params.count = count;
    void* rebuilt = memory_.allocate(std::size_t{2} * count * width);
    for (const DeviceElement element : {DeviceElement::kInt8, DeviceElement::kInt4}) {
      const int row_bytes = channel_bytes(element, width) + width / 8;
      void* block = memory_.allocate(static_cast<std::size_t>(row_bytes) * count);
      params.to = {
          memory_.upload(std::vector<const void*>{block}), 1, count, width, element, false, 1};
      const DequantiseRows back{.from = params.to, .count = count, .to = rebuilt};
      const std::vector<double> ms = median_times({[&] { require(launch_cuda(params, nullptr)); },
                                                   [&] { require(launch_cuda(back, nullptr)); }},
                                                  5);
      const double bytes = static_cast<double>(count) * (2 * width + row_bytes);
      const std::string name = element == DeviceElement::kInt8 ? "int8" : "int4";
      report_.add("quantise 32k x 1024 to " + name, ms[0], bytes / ms[0] / copy_rate_, "copy", "");
      report_.add("dequantise 32k x 1024 of " + name, ms[1], bytes / ms[1] / copy_rate_, "copy",
                  "");
    }
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

#ifndef KVC_NO_PEER
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
#endif

  GpuBackend memory_;
  TimingReport report_;
  double copy_rate_ = 0;  // bytes per millisecond
};

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  return kvc::testing::gpu_bench_main(argc, argv,
                                      [] { return kvc::testing::Bench().run().json(); });
}
