// The cases of a step's kernels on a GPU, each launch by itself and as a graph. Needs the CUDA toolkit and nothing else.
// Exit code 0: all passed; 1: not; 77: there is no GPU.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>

#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/gpu_memory.h"
#include "tests/runtime/kernels/cuda/step_cases.h"

namespace kvc::testing {
namespace {

void require(const LaunchError& error) {
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
}

// Empty, or what differs.
std::string run_case(const StepCase& step_case, const RunStep& run) {
  try {
    GpuMemory memory;
    return step_case.run(memory, run);
  } catch (const std::exception& error) {
    return error.what();
  }
}

int run_all(const std::string& only) {
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream");
  const RunStep direct = [&](const StepLaunch& launch) {
    require(launch_step_cuda(launch, stream));
    check_cuda(cudaStreamSynchronize(stream), "kernel");
  };
  const RunStep captured = [&](const StepLaunch& launch) {
    StepGraph graph;
    require(graph.capture({launch}, stream));
    require(graph.launch(stream));
    check_cuda(cudaStreamSynchronize(stream), "graph");
  };
  int failed = 0, passed = 0;
  for (const auto& cases : {step_cases(), sample_cases()}) {
    for (const StepCase& step_case : cases) {
      if (step_case.name.find(only) == std::string::npos) {
        continue;
      }
      for (const RunStep& run : {direct, captured}) {
        const std::string difference = run_case(step_case, run);
        difference.empty() ? ++passed : ++failed;
        if (!difference.empty()) {
          std::printf("FAILED %s: %s\n", step_case.name.c_str(), difference.c_str());
        }
      }
    }
  }
  check_cuda(cudaStreamDestroy(stream), "stream");
  std::printf("step kernels: %d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  return kvc::testing::gpu_test_main(argc, argv, kvc::testing::run_all);
}
