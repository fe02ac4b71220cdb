// A decoding step as a list of launches, whose lengths and positions lie in GPU memory: the same list holds for every
// step, and a CUDA graph of it too.
#pragma once

#include <variant>
#include <vector>

#include "runtime/kernels/cuda/append_rows.h"
#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/budget_step.h"
#include "runtime/kernels/cuda/code_tiles_device.h"
#include "runtime/kernels/cuda/few_rows_product.h"
#include "runtime/kernels/cuda/launch.h"
#include "runtime/kernels/cuda/paged_tokens.h"
#include "runtime/kernels/cuda/quantise_rows.h"
#include "runtime/kernels/cuda/residual_rows.h"
#include "runtime/kernels/cuda/row_cosines.h"
#include "runtime/kernels/cuda/sample_tokens.h"

namespace kvc {

// For any kernel. RankAttention: its launch or both of them. DenseAttention of two stores: the fused kernel.
using KernelLaunch =
    std::variant<AppendLatents, AppendRows, AttendOpen, BudgetStep, CodedAttention, DecodeTiles,
                 CombinePartials, DenseAttention, DequantiseRows, EmbedRows, EncodeTokens,
                 FewRowsProduct, NormRows, PlacePages, ProjectValues, QuantiseRows, RankAttention,
                 ReadTokens, RowCosines, SampleTokens, StoreCodes>;
using StepProgram = std::vector<KernelLaunch>;

LaunchError launch_cuda(const KernelLaunch& launch, void* stream);
LaunchError launch_cuda(const StepProgram& program, void* stream);

// A program as a CUDA graph: one launch for all of them. Movable; in C++ without the toolkit's headers.
class StepGraph {
 public:
  StepGraph() = default;
  ~StepGraph();
  StepGraph(StepGraph&& other) noexcept;
  StepGraph& operator=(StepGraph&& other) noexcept;

  // What went wrong, or empty. `stream` is not the default one. Nothing runs; kernels may be loaded meanwhile.
  LaunchError capture(const StepProgram& program, void* stream);
  LaunchError launch(void* stream) const;

 private:
  void* graph_ = nullptr;  // cudaGraphExec_t
};

}  // namespace kvc
