#include "runtime/kernels/cuda/step_program.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "runtime/kernels/cuda/attention_one_pass.h"
namespace kvc {
namespace {

LaunchError error_of(cudaError_t status, const char* what) {
  return status == cudaSuccess
             ? LaunchError{}
             : std::string("step graph: ") + what + ": " + cudaGetErrorString(status);
}

LaunchError launch_one(const EmbedRows& params, void* stream) {
  return embed_rows_cuda(params, stream);
}
LaunchError launch_one(const NormRows& params, void* stream) {
  return norm_rows_cuda(params, stream);
}
LaunchError launch_one(const FewRowsProduct& params, void* stream) {
  return few_rows_product_cuda(params, stream);
}
LaunchError launch_one(const AppendRows& params, void* stream) {
  return append_rows_cuda(params, stream);
}
LaunchError launch_one(const AppendLatents& params, void* stream) {
  return append_latents_cuda(params, stream);
}
LaunchError launch_one(const QuantiseRows& params, void* stream) {
  return quantise_rows_cuda(params, stream);
}
LaunchError launch_one(const CodeTilesParams& params, void* stream) {
  return encode_tiles_cuda(params, stream);
}
LaunchError launch_one(const RowCosines& params, void* stream) {
  return row_cosines_cuda(params, stream);
}
LaunchError launch_one(const DenseAttention& params, void* stream) {
  return params.num_sources == 2 ? fused_attention_cuda(params, stream)
                                 : dense_attention_cuda(params, stream);
}
LaunchError launch_one(const RankAttention& params, void* stream) {
  return rank_attention_cuda(params, stream);
}
LaunchError launch_one(const BudgetStep& params, void* stream) {
  return budget_step_cuda(params, stream);
}
LaunchError launch_one(const CombinePartials& params, void* stream) {
  return combine_partials_cuda(params, stream);
}
LaunchError launch_one(const ProjectValues& params, void* stream) {
  return project_values_cuda(params, stream);
}
LaunchError launch_one(const SampleTokens& params, void* stream) {
  return sample_tokens_cuda(params, stream);
}

}  // namespace

LaunchError launch_step_cuda(const StepLaunch& step, void* stream) {
  return std::visit([&](const auto& params) { return launch_one(params, stream); }, step);
}

LaunchError launch_steps_cuda(const StepProgram& program, void* stream) {
  for (const StepLaunch& step : program) {
    if (LaunchError error = launch_step_cuda(step, stream); !error.empty()) {
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
  LaunchError error = launch_steps_cuda(program, stream);
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
