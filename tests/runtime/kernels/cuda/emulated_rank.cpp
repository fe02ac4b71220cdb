#include "tests/runtime/kernels/cuda/emulated_rank.h"

#include <stdexcept>

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_one_pass_body.h"
#include "runtime/kernels/cuda/attention_project_body.h"
#include "runtime/kernels/cuda/attention_ranks_body.h"
#include "runtime/kernels/cuda/attention_rebuild_body.h"

namespace kvc::testing {
namespace {

constexpr int kWarps = 2;

template <class T, int kPairTiles, class Source>
void emulate_rebuild(const RankAttention& params, ThreadOrder order) {
  run_grid({(params.max_tiles + kWarps - 1) / kWarps, params.num_kv_heads, params.num_sequences},
           32 * kWarps, static_cast<std::size_t>(RebuildShared<kPairTiles, Source>::bytes(kWarps)),
           order, [&](EmulatedThread& thread) {
             rebuild_scores_body<T, kPairTiles, Source>(params, thread);
           });
}

template <class T, int kQueryTiles, class Source>
void emulate_sums(const RankAttention& params, ThreadOrder order) {
  const int ranks = kWarps * kWarpRanks;
  run_grid({params.partials.num_parts, (params.sums_width + ranks - 1) / ranks,
            params.num_sequences * rank_head_chunks(params, kQueryTiles)},
           32 * kWarps, static_cast<std::size_t>(kWarps * RankSumsShared<Source>::kWarpBytes),
           order,
           [&](EmulatedThread& thread) { sum_ranks_body<T, kQueryTiles, Source>(params, thread); });
}

template <class T, class Source>
void emulate_both(const RankAttention& params, ThreadOrder order) {
  switch (params.keys.pairs.num_pairs) {
    case 16:
      emulate_rebuild<T, 2, Source>(params, order);
      break;
    case 24:
      emulate_rebuild<T, 3, Source>(params, order);
      break;
    case 32:
      emulate_rebuild<T, 4, Source>(params, order);
      break;
    case 48:
      emulate_rebuild<T, 6, Source>(params, order);
      break;
    default:
      emulate_rebuild<T, 8, Source>(params, order);
      break;
  }
  const int heads = params.num_heads / (params.tiles == nullptr ? 1 : params.num_blocks);
  if (heads <= 8) {
    emulate_sums<T, 1, Source>(params, order);
  } else if (heads <= 16) {
    emulate_sums<T, 2, Source>(params, order);
  } else {
    emulate_sums<T, 4, Source>(params, order);
  }
}

template <class T, int kPairTiles, int kQueryTiles>
void emulate_one_pass(const RankAttention& params, ThreadOrder order) {
  const OnePassAttention launch{params, one_pass_layout(params)};
  run_grid({params.partials.num_parts, launch.at.blocks, params.num_sequences}, 32 * kOnePassWarps,
           static_cast<std::size_t>(launch.at.bytes), order, [&](EmulatedThread& thread) {
             one_pass_attention_body<T, kPairTiles, kQueryTiles>(launch, thread);
           });
}

template <class T, int kPairTiles>
void emulate_one_pass_heads(const RankAttention& params, ThreadOrder order) {
  switch (params.one_pass.query_tiles) {
    case 1:
      return emulate_one_pass<T, kPairTiles, 1>(params, order);
    case 2:
      return emulate_one_pass<T, kPairTiles, 2>(params, order);
    default:
      return emulate_one_pass<T, kPairTiles, 4>(params, order);
  }
}

template <class T>
void emulate_one_pass_pairs(const RankAttention& params, ThreadOrder order) {
  switch (params.keys.pairs.num_pairs) {
    case 16:
      return emulate_one_pass_heads<T, 2>(params, order);
    case 32:
      return emulate_one_pass_heads<T, 4>(params, order);
    case 48:
      return emulate_one_pass_heads<T, 6>(params, order);
    default:
      return emulate_one_pass_heads<T, 8>(params, order);
  }
}

void require(const LaunchError& error) {
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
}

}  // namespace

void emulate_rank_attention(const RankAttention& params, ThreadOrder order) {
  if (params.one_pass.query_tiles > 0) {
    require(check_one_pass_attention(params, kEmulatedSharedBytes));
    params.element == DeviceElement::kBFloat16 ? emulate_one_pass_pairs<BFloat16>(params, order)
                                               : emulate_one_pass_pairs<Float16>(params, order);
    return;
  }
  require(check_rank_attention(params));
  const bool is_bfloat16 = params.element == DeviceElement::kBFloat16;
  if (params.tiles != nullptr) {
    emulate_both<Float16, TileCodes>(params, order);
  } else if (needs_decoding(params.latents)) {
    is_bfloat16 ? emulate_both<BFloat16, LatentCodes>(params, order)
                : emulate_both<Float16, LatentCodes>(params, order);
  } else {
    is_bfloat16 ? emulate_both<BFloat16, LatentNumbers>(params, order)
                : emulate_both<Float16, LatentNumbers>(params, order);
  }
}

void emulate_project_values(const ProjectValues& params, ThreadOrder order) {
  const GridShape grid{(params.head_dim + kWarps - 1) / kWarps, params.num_kv_heads,
                       params.num_sequences};
  run_grid(grid, 32 * kWarps, 16, order, [&](EmulatedThread& thread) {
    params.element == DeviceElement::kBFloat16 ? project_values_body<BFloat16>(params, thread)
                                               : project_values_body<Float16>(params, thread);
  });
}

}  // namespace kvc::testing
