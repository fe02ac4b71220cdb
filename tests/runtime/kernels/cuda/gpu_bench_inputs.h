// Inputs of attention benchmarks: Llama-3.1-8B's shape, random numbers in 4 GiB that all stores point into, so that no
// run finds them in the cache, nor one store another's.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/cuda/attention_codes.h"
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
  static constexpr std::int64_t kBytes = std::int64_t{1} << 32;

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
  // Coded tokens at 4.5 bits on average, in num_blocks blocks.
  RankAttention codes(const Batch& batch, int num_blocks, int coefficients);
  // Keys apart from values, each at 4 bits on average of 128 coefficients a KV head, kept 0.25: keys that are rebuilt, or
  // met with means in every eighth pair. whole: values of all heads are one block.
  RankAttention codes_apart(const Batch& batch);
  CodedAttention met_codes(const Batch& batch, bool turned, bool whole);
  // What sums the values behind met codes with one block of values.
  RankAttention sums_behind(const Batch& batch, const CodedAttention& keys);
  ProjectValues project(int num_sequences, int sums_width, int rank, DeviceElement element);
  CombinePartials combine(const DevicePartials& partials, int num_sequences, int width);

  static std::int64_t row_bytes(const DeviceRows& rows);

 private:
  RankAttention rank_params(const Batch& batch, int rank, int sums_width);
  KeyPairs pairs(int first, int count, int padded);
  KeyRows key_rows(int step);  // one for every so manyeth rotary pair; 0: for both channels of each
  // Tiles of blocks with so many coefficients of each width [9].
  RankCodes tiles(const Batch& batch, int num_blocks, const std::vector<int>& widths,
                  std::int64_t offset);
  DevicePartials partials(const Batch& batch, int num_parts, int width);
  int parts(const Batch& batch, int blocks_per_part) const;
  const std::int32_t* lengths(const Batch& batch);
  void set_angles(int num_positions, const float*& cos, const float*& sin);

  GpuBackend memory_;
  std::uint8_t* numbers_;
  int multiprocessors_ = 0;
};

}  // namespace kvc::testing
