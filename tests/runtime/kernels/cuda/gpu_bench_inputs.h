// Inputs of attention benchmarks: Llama-3.1-8B's shape, random numbers in 1 GiB that all stores point into, so that no
// run finds them in the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "tests/runtime/kernels/cuda/gpu_backend.h"

namespace kvc::testing {

struct Batch {
  int num_sequences, num_tokens;
  std::int64_t tokens() const { return std::int64_t{num_sequences} * num_tokens; }
};

class BenchInputs {
 public:
  static constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kWidth = kKvHeads * kHeadDim;
  static constexpr std::int64_t kBytes = std::int64_t{1} << 30;

  BenchInputs();

  GpuBackend& memory() { return memory_; }
  std::uint8_t* numbers() { return numbers_; }
  int multiprocessors() const { return multiprocessors_; }

  // A store of the batch from byte `offset` of the numbers on.
  DeviceRows rows(const Batch& batch, DeviceElement element, int width, bool per_channel,
                  std::int64_t offset);
  DenseAttention dense(const Batch& batch, DeviceElement store, int num_sources);
  // Latents of which key_rank columns make keys and value_rank values (the same ones where `shared`); of every head's
  // 64 rotary pairs `stored` are columns themselves.
  RankAttention latents(const Batch& batch, int key_rank, int value_rank, bool shared, int stored);
  // The same in one launch, in the shape that the rule chooses here; without one where it chooses two launches.
  RankAttention in_one_launch(const Batch& batch, const RankAttention& two);
  // Coded tokens at `bits` on average of 256 coefficients a KV head, in num_blocks blocks.
  RankAttention codes(const Batch& batch, int num_blocks, int coefficients);
  ProjectValues project(const RankAttention& params);
  CombinePartials combine(const DevicePartials& partials, int num_sequences, int width);

  static std::int64_t row_bytes(const DeviceRows& rows);

 private:
  RankAttention rank_params(const Batch& batch, int rank, int sums_width);
  KeyPairs pairs(int first, int count, int padded);
  DevicePartials partials(const Batch& batch, int num_parts, int width);
  int parts(const Batch& batch, int blocks_per_part) const;
  const std::int32_t* lengths(const Batch& batch);
  void set_angles(int num_positions, const float*& cos, const float*& sin);

  GpuBackend memory_;
  std::uint8_t* numbers_;
  int multiprocessors_ = 0, shared_bytes_ = 0;
};

}  // namespace kvc::testing
