#include "tests/runtime/kernels/cuda/emulated_step.h"

#include <stdexcept>

#include "runtime/kernels/cuda/append_latents_body.h"
#include "runtime/kernels/cuda/append_rows_body.h"
#include "runtime/kernels/cuda/embed_rows_body.h"
#include "runtime/kernels/cuda/few_rows_product_body.h"
#include "runtime/kernels/cuda/norm_rows_body.h"
#include "runtime/kernels/cuda/sample_tokens_body.h"
#include "tests/runtime/kernels/cuda/emulated_backend.h"
#include "tests/runtime/kernels/cuda/emulated_cache_kernels.h"

namespace kvc::testing {
namespace {

constexpr int kThreads = 64;  // more than one warp, and fewer than a GPU's, for time

void require(const LaunchError& error) {
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
}

int chunks(int count, int size) { return (count + size - 1) / size; }

template <class T, bool kCodes, bool kGated>
void emulate_product(const FewRowsProduct& params, ThreadOrder order) {
  run_grid(
      {chunks(params.out, kProductOutputs)}, kThreads,
      static_cast<std::size_t>(FewRowsShared::bytes(kThreads / 32, kGated)), order,
      [&](EmulatedThread& thread) { few_rows_product_body<T, kCodes, kGated>(params, thread); });
}
template <class T>
void emulate_product(const FewRowsProduct& params, ThreadOrder order) {
  if (params.scales != nullptr) {
    params.gated ? emulate_product<T, true, true>(params, order)
                 : emulate_product<T, true, false>(params, order);
  } else {
    params.gated ? emulate_product<T, false, true>(params, order)
                 : emulate_product<T, false, false>(params, order);
  }
}

struct Emulator {
  ThreadOrder order;

  void operator()(const EmbedRows& params) const {
    run_grid({chunks(params.width, kThreads), params.num_rows}, kThreads, 16, order,
             [&](EmulatedThread& thread) { embed_rows_body(params, thread); });
  }
  void operator()(const NormRows& params) const {
    run_grid({params.num_rows}, kThreads, kThreads / 32 * sizeof(float), order,
             [&](EmulatedThread& thread) { norm_rows_body(params, thread); });
  }
  void operator()(const FewRowsProduct& params) const {
    require(check_few_rows_product(params));
    params.element == DeviceElement::kBFloat16 ? emulate_product<BFloat16>(params, order)
                                               : emulate_product<Float16>(params, order);
  }
  void operator()(const AppendRows& params) const {
    require(check_append_rows(params));
    run_grid(
        {chunks(params.num_heads + 2 * params.num_kv_heads, kThreads / 32), params.num_sequences},
        kThreads, 16, order, [&](EmulatedThread& thread) { append_rows_body(params, thread); });
  }
  void operator()(const AppendLatents& params) const {
    run_grid({params.num_sequences}, kThreads, 16, order,
             [&](EmulatedThread& thread) { append_latents_body(params, thread); });
  }
  void operator()(const QuantiseRows& params) const { EmulatedCacheKernels(order).run(params); }
  void operator()(const CodeTilesParams& params) const {
    EmulatedCacheKernels(order).encode(params);
  }
  void operator()(const RowCosines& params) const { EmulatedCacheKernels(order).run(params); }
  void operator()(const BudgetStep& params) const {
    require(check_budget_step(params));
    EmulatedCacheKernels(order).run(params);
  }
  void operator()(const SampleTokens& params) const {
    run_grid({params.num_sequences}, kThreads,
             static_cast<std::size_t>(SampleShared::bytes(kThreads)), order,
             [&](EmulatedThread& thread) { SampleBlock<EmulatedThread>(params, thread).run(); });
  }
  template <class Params>  // attention
  void operator()(const Params& params) const {
    EmulatedBackend(order).run(params);
  }
};

}  // namespace

void emulate_launch(const StepLaunch& launch, ThreadOrder order) {
  std::visit(Emulator{order}, launch);
}

}  // namespace kvc::testing
