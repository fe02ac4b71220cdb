// Data that launches of layers with several segments pass to one another; layers run one after the other and share
// it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/kernels/cuda/attention_combine.h"

namespace kvc {

// Partial softmaxes of parts of the tokens.
struct PartialScratch {
  at::Tensor max, sum;  // [num_sequences, parts, num_heads] float32
  at::Tensor output;    // [num_sequences, parts, num_heads, width] float32
  DevicePartials partials{};
};

// For `parts` of each sequence's tokens, on the executor's device.
PartialScratch make_partials(const ModelConfig& config, std::int64_t num_sequences, int parts,
                             std::int64_t width, const StepExecutor& executor);

// Tensors on the device, undefined if the plan needs none.
struct GroupScratch {
  std::vector<at::Tensor> all;
  std::int64_t max_tiles = 0;  // of 32 tokens of a sequence
  PartialScratch dense[2];     // of exact rows, pending and others
  PartialScratch rank;         // of latents and codes
  // For two launches, if any: [num_sequences * max_tiles * num_heads, 32] 16 bits, and maxima and sums.
  at::Tensor weights, tile_max, tile_sum;
  at::Tensor combined;  // [num_sequences, num_heads, rank] float32: sums of latents
  std::vector<at::Tensor> log_sum,
      projected;                         // of latents' segments: [num_sequences, num_heads, ..]
  at::Tensor latent, weighted, score;    // of the new tokens, float32
  at::Tensor first_latent, last_latent;  // 16 bits
  // int32 [num_sequences]: the first token in a layer's window, among codes or unmerged tokens and among merged
  // ones.
  at::Tensor first_apart[2];
  // float16 [num_sequences, q_dim], for coded layers if the model computes in another dtype.
  at::Tensor query;
};

// The largest number of parts into which launches over latents and codes split tokens. num_blocks: of codes, which
// split the heads.
std::int64_t most_rank_parts(int multiprocessors, std::int64_t num_sequences,
                             std::int64_t num_blocks, std::int64_t rank, std::int64_t tokens);

// capacity: tokens that the longest sequence may have.
GroupScratch make_group_scratch(const GpuModel& model, const GpuCache& cache, std::int64_t capacity,
                                const StepExecutor& executor);

// Data that two launches over latents or codes pass to one another.
void add_tile_weights(const GpuModel& model, std::int64_t num_sequences, GroupScratch& scratch);

std::int64_t whole_ranks(std::int64_t rank);  // rounded up as sums of latents are

}  // namespace kvc
