// The cases of a step's kernels on a GPU, each launch by itself and as a graph. Needs the CUDA toolkit and nothing else.
// Exit code 0: all passed; 1: not; 77: there is no GPU.
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/gpu_backend.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

// Launches as graphs of one launch.
class GraphBackend : public GpuBackend {
 public:
  GraphBackend() { check_cuda(cudaStreamCreate(&stream_), "stream"); }
  ~GraphBackend() override { (void)cudaStreamDestroy(stream_); }

  void run(const KernelLaunch& launch) override {
    StepGraph graph;
    LaunchError error = graph.capture({launch}, stream_);
    if (error.empty()) {
      error = graph.launch(stream_);
    }
    if (!error.empty()) {
      throw std::runtime_error(error);
    }
    check_cuda(cudaStreamSynchronize(stream_), "graph");
  }

 private:
  cudaStream_t stream_ = nullptr;
};

template <class Backend>
std::string run_on(const KernelCase& step_case) {
  Backend backend;
  return step_case.run(backend);
}

std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> cases = step_cases();
  for (const KernelCase& sample_case : sample_cases()) {
    cases.push_back(sample_case);
  }
  return cases;
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  using namespace kvc::testing;
  return gpu_test_main(argc, argv,
                       {"step kernels", all_cases(), {run_on<GpuBackend>, run_on<GraphBackend>}});
}
