#include "tests/runtime/kernels/cuda/emulated_backend.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "runtime/kernels/cuda/attention_combine_body.h"
#include "runtime/kernels/cuda/attention_dense_body.h"
#include "runtime/kernels/cuda/attention_fuse_rows_body.h"
#include "tests/runtime/kernels/cuda/emulated_rank.h"

namespace kvc::testing {
namespace {

// As many warps as tests have time for, and more than one.
constexpr int kWarps = 2;

template <class T, int kHeadDim, int kQueryTiles, int kSources, bool kCodes>
void emulate_dense(const DenseAttention& params, ThreadOrder order) {
  using Shared = DenseShared<kHeadDim, kSources, kCodes>;
  run_grid({params.partials.num_parts, params.num_kv_heads, params.num_sequences}, 32 * kWarps,
           static_cast<std::size_t>(Shared::bytes(kWarps, kQueryTiles)), order,
           [&](EmulatedThread& thread) {
             dense_attention_body<T, kHeadDim, kQueryTiles, kSources, kCodes>(params, thread);
           });
}

template <class T, int kHeadDim, int kSources, bool kCodes>
void emulate_dense_heads(const DenseAttention& params, ThreadOrder order) {
  if constexpr (kHeadDim * kSources <= 128) {
    if (params.num_heads / params.num_kv_heads > 8) {
      return emulate_dense<T, kHeadDim, 2, kSources, kCodes>(params, order);
    }
  }
  emulate_dense<T, kHeadDim, 1, kSources, kCodes>(params, order);
}

template <class T, int kSources, bool kCodes>
void emulate_dense_width(const DenseAttention& params, ThreadOrder order) {
  switch (params.head_dim) {
    case 32:
      return emulate_dense_heads<T, 32, kSources, kCodes>(params, order);
    case 64:
      return emulate_dense_heads<T, 64, kSources, kCodes>(params, order);
    case 128:
      return emulate_dense_heads<T, 128, kSources, kCodes>(params, order);
    default:
      return emulate_dense_heads<T, 256, kSources, kCodes>(params, order);
  }
}

template <int kSources>
void emulate_dense_type(const DenseAttention& params, ThreadOrder order) {
  const bool codes = needs_decoding(params.rows[0].key);
  if (params.element == DeviceElement::kBFloat16) {
    codes ? emulate_dense_width<BFloat16, kSources, true>(params, order)
          : emulate_dense_width<BFloat16, kSources, false>(params, order);
  } else {
    codes ? emulate_dense_width<Float16, kSources, true>(params, order)
          : emulate_dense_width<Float16, kSources, false>(params, order);
  }
}

void require(const LaunchError& error) {
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
}

}  // namespace

void* EmulatedBackend::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  memory_.push_back(std::make_unique<std::uint8_t[]>(bytes + kAlignment));
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.back().get());
  return memory_.back().get() + (kAlignment - address % kAlignment) % kAlignment;
}
void EmulatedBackend::write(void* to, const void* from, std::size_t bytes) {
  std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
}
void EmulatedBackend::read(void* to, const void* from, std::size_t bytes) {
  std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
}

void EmulatedBackend::run(const DenseAttention& params) {
  require(check_dense_attention(params, params.num_sources));
  params.num_sources == 1 ? emulate_dense_type<1>(params, order_)
                          : emulate_dense_type<2>(params, order_);
}

void EmulatedBackend::run(const CombinePartials& params) {
  const int chunks = (params.width + 31) / 32;
  run_grid({params.num_heads, params.num_sequences, chunks}, 32, 16, order_,
           [&](EmulatedThread& thread) { combine_partials_body(params, thread); });
}

void EmulatedBackend::run(const RankAttention& params) { emulate_rank_attention(params, order_); }
void EmulatedBackend::run(const ProjectValues& params) { emulate_project_values(params, order_); }

void EmulatedBackend::run(const FuseRows& params) {
  const int blocks = (params.max_rows * params.first.width / 8 + 31) / 32;
  run_grid({blocks, params.num_sequences}, 32, 16, order_,
           [&](EmulatedThread& thread) { fuse_rows_body(params, thread); });
}

}  // namespace kvc::testing
