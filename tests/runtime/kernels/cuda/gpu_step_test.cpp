// The cases of a step's kernels on a GPU, each launch by itself and as a graph. Needs the CUDA toolkit and nothing else.
// Exit code 0: all passed; 1: not; 77: there is no GPU.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>

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

// Empty, or what differs.
template <class Backend>
std::string run_case(const KernelCase& step_case) {
  try {
    Backend backend;
    return step_case.run(backend);
  } catch (const std::exception& error) {
    return error.what();
  }
}

int run_all(const std::string& only) {
  int failed = 0, passed = 0;
  for (const auto& cases : {step_cases(), sample_cases()}) {
    for (const KernelCase& step_case : cases) {
      if (step_case.name.find(only) == std::string::npos) {
        continue;
      }
      for (const std::string& difference :
           {run_case<GpuBackend>(step_case), run_case<GraphBackend>(step_case)}) {
        difference.empty() ? ++passed : ++failed;
        if (!difference.empty()) {
          std::printf("FAILED %s: %s\n", step_case.name.c_str(), difference.c_str());
        }
      }
    }
  }
  std::printf("step kernels: %d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  return kvc::testing::gpu_test_main(argc, argv, kvc::testing::run_all);
}
