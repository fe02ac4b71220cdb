#include "tests/runtime/kernels/cuda/emulated_cache_kernels.h"

#include "runtime/kernels/cuda/budget_step_body.h"
#include "runtime/kernels/cuda/code_tiles_body.h"
#include "runtime/kernels/cuda/dequantise_rows_body.h"
#include "runtime/kernels/cuda/gather_rows_body.h"
#include "runtime/kernels/cuda/merge_scores_body.h"
#include "runtime/kernels/cuda/nearest_rows_body.h"
#include "runtime/kernels/cuda/project_rows_body.h"
#include "runtime/kernels/cuda/quantise_rows_body.h"

namespace kvc::testing {
namespace {

constexpr int kThreads = 64;  // more than one warp, fewer than a GPU's: blocks end within rows

int chunks(std::int64_t count, int size) { return static_cast<int>((count + size - 1) / size); }

// body.template operator()<T>() for the type of `element`.
template <class Body>
void with_type(DeviceElement element, const Body& body) {
  element == DeviceElement::kBFloat16 ? body(BFloat16{}) : body(Float16{});
}

}  // namespace

void EmulatedCacheKernels::run(const QuantiseRows& params) {
  with_type(params.from_element, [&](auto type) {
    run_grid({chunks(quantise_pieces(params), kThreads), params.num_sequences}, kThreads, 16,
             order_,
             [&](EmulatedThread& thread) { quantise_rows_body<decltype(type)>(params, thread); });
  });
}

void EmulatedCacheKernels::run(const DequantiseRows& params) {
  const std::int64_t pieces =
      std::int64_t{params.count} * (params.from.width / kDequantisedChannels);
  with_type(params.to_element, [&](auto type) {
    run_grid({chunks(pieces, kThreads), params.num_sequences}, kThreads, 16, order_,
             [&](EmulatedThread& thread) { dequantise_rows_body<decltype(type)>(params, thread); });
  });
}

void EmulatedCacheKernels::encode(const CodeTilesParams& params) {
  run_grid({params.count, params.num_sequences}, 32, 32 * sizeof(float), order_,
           [&](EmulatedThread& thread) { encode_tiles_body(params, thread); });
}

void EmulatedCacheKernels::decode(const CodeTilesParams& params) {
  run_grid({params.count, params.num_sequences}, kThreads, 16, order_,
           [&](EmulatedThread& thread) { decode_tiles_body(params, thread); });
}

void EmulatedCacheKernels::run(const ProjectRows& params) {
  with_type(params.element, [&](auto type) {
    run_grid({chunks(params.projection.num_rows, ProductTile::kColumns),
              chunks(params.rows.num_rows, ProductTile::kRows)},
             ProductTile::kThreads, ProductTile::kSharedBytes, order_,
             [&](EmulatedThread& thread) { project_rows_body<decltype(type)>(params, thread); });
  });
}

void EmulatedCacheKernels::run(const NearestRows& params) {
  with_type(params.element, [&](auto type) {
    run_grid({chunks(params.rows.num_rows, ProductTile::kRows), params.num_parts},
             ProductTile::kThreads, kNearestSharedBytes, order_,
             [&](EmulatedThread& thread) { nearest_rows_body<decltype(type)>(params, thread); });
  });
  run_grid({chunks(params.rows.num_rows, kThreads)}, kThreads, 16, order_,
           [&](EmulatedThread& thread) { join_nearest_body(params, thread); });
}

void EmulatedCacheKernels::run(const LostRows& params) {
  with_type(params.element, [&](auto type) {
    run_grid({chunks(params.reconstruct.num_rows, ProductTile::kColumns),
              chunks(params.latents.num_rows, ProductTile::kRows)},
             ProductTile::kThreads, ProductTile::kSharedBytes, order_,
             [&](EmulatedThread& thread) { lost_rows_body<decltype(type)>(params, thread); });
  });
  run_grid({chunks(params.latents.num_rows, kThreads)}, kThreads, 16, order_,
           [&](EmulatedThread& thread) { join_lost_body(params, thread); });
}

void EmulatedCacheKernels::run(const RowCosines& params) {
  with_type(params.element, [&](auto type) {
    run_grid({chunks(params.num_rows, kThreads / 32)}, kThreads, 16, order_,
             [&](EmulatedThread& thread) { row_cosines_body<decltype(type)>(params, thread); });
  });
}

void EmulatedCacheKernels::run(const GatherRows& params) {
  run_grid({chunks(params.max_count, kThreads / 32), params.num_sequences}, kThreads, 16, order_,
           [&](EmulatedThread& thread) { gather_rows_body(params, thread); });
}

template <class T, bool kCodes, int kHeads>
static void emulate_step(const BudgetStep& params, ThreadOrder order) {
  run_grid({params.num_kv_heads, params.num_sequences, params.partials.num_parts}, kThreads,
           static_cast<std::size_t>(budget_shared_bytes(params, kThreads)), order,
           [&](EmulatedThread& thread) { budget_step_body<T, kHeads, kCodes>(params, thread); });
}

template <class T, bool kCodes>
static void emulate_step(const BudgetStep& params, ThreadOrder order) {
  switch (heads_together(params.num_heads / params.num_kv_heads)) {
    case 1:
      return emulate_step<T, kCodes, 1>(params, order);
    case 2:
      return emulate_step<T, kCodes, 2>(params, order);
    case 4:
      return emulate_step<T, kCodes, 4>(params, order);
    default:
      return emulate_step<T, kCodes, 8>(params, order);
  }
}

void EmulatedCacheKernels::run(const BudgetStep& params) {
  with_type(params.element, [&](auto type) {
    using T = decltype(type);
    is_coded(params.context) ? emulate_step<T, true>(params, order_)
                             : emulate_step<T, false>(params, order_);
  });
}

}  // namespace kvc::testing
