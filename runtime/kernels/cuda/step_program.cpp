#include "runtime/kernels/cuda/step_program.h"

#include <cuda_runtime_api.h>

#include <utility>

namespace kvc {
namespace {

LaunchError error_of(cudaError_t status, const char* what) {
  return status == cudaSuccess
             ? LaunchError{}
             : std::string("step graph: ") + what + ": " + cudaGetErrorString(status);
}

}  // namespace

LaunchError launch_cuda(const KernelLaunch& launch, void* stream) {
  return std::visit([&](const auto& params) { return launch_cuda(params, stream); }, launch);
}

LaunchError launch_cuda(const StepProgram& program, void* stream) {
  for (const KernelLaunch& launch : program) {
    if (LaunchError error = launch_cuda(launch, stream); !error.empty()) {
      return error;
    }
  }
  return {};
}

StepGraph::~StepGraph() {
  if (graph_ != nullptr) {
    (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  }
}

StepGraph::StepGraph(StepGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}

StepGraph& StepGraph::operator=(StepGraph&& other) noexcept {
  std::swap(graph_, other.graph_);
  return *this;
}

LaunchError StepGraph::capture(const StepProgram& program, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  if (LaunchError error =
          error_of(cudaStreamBeginCapture(queue, cudaStreamCaptureModeRelaxed), "begin of capture");
      !error.empty()) {
    return error;
  }
  LaunchError error = launch_cuda(program, stream);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(queue, &graph);  // also after a launch that failed
  cudaGraphExec_t executable = nullptr;
  if (error.empty()) {
    error = error_of(ended, "end of capture");
  }
  if (error.empty()) {
    error = error_of(cudaGraphInstantiate(&executable, graph, 0), "instantiation");
  }
  if (graph != nullptr) {
    (void)cudaGraphDestroy(graph);
  }
  if (error.empty()) {
    StepGraph captured;
    captured.graph_ = executable;
    *this = std::move(captured);
  }
  return error;
}

LaunchError StepGraph::launch(void* stream) const {
  return error_of(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), static_cast<cudaStream_t>(stream)),
      "launch");
}

}  // namespace kvc
