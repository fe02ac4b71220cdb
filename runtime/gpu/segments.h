// Attention over layers whose tokens lie in several segments: each leaves a partial softmax. Layers follow each other, so
// there is one of each scratch memory.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/gpu/step_launches.h"

namespace kvc {

class Segments {
 public:
  explicit Segments(StepLaunches& launches);

  // For `num_rows` exact rows, of the first store or of another.
  DevicePartials add_exact(DenseAttention attention, const at::Tensor& num_rows);
  DevicePartials add_others(DenseAttention attention, const at::Tensor& num_rows);
  // Where codes_first_token: for the first token, in a store of one row, of the sequences that very_first() names.
  DevicePartials add_first(DenseAttention attention);
  // For attention that says where its latents or codes lie; the rest follows from the query's. segment: 0 or more, whose
  // output is kept until they are combined.
  DevicePartials add_sums(RankAttention attention, const DenseAttention& query,
                          const DeviceRope& rope, ProjectValues values, std::size_t segment);

  // The same for codes of keys that meet the query; `codes`: of values.
  DevicePartials add_codes(CodedAttention attention, const RankCodes& codes,
                           const DenseAttention& query, const DeviceRope& rope,
                           ProjectValues values, std::size_t segment);

  std::int32_t* very_first() const;  // int32 [num_sequences], as ApartRows has it
  // int32 [num_sequences]: the first that a layer's window shows, of codes or unmerged tokens (0) and of merged ones (1).
  std::int32_t* first_apart(std::size_t segment) const;
  // The same, or null where the layer has no window.
  const std::int32_t* first_apart(const DenseAttention& query, std::size_t segment) const {
    return query.first_rows == nullptr ? nullptr : first_apart(segment);
  }

 private:
  template <class Attention>
  void set_shape(const DenseAttention& query, Attention& attention) const;
  // What the first launch of an attention leaves for the second.
  template <class Attention>
  void set_scratch(Attention& attention);
  // Sums of the segment's parts become its values.
  DevicePartials add_projection(const DevicePartials& of_parts, int sums_width,
                                const DenseAttention& query, ProjectValues values,
                                std::size_t segment);

  StepLaunches& launches_;
  DevicePartials others_, ranks_;
  std::int64_t max_tiles_;  // of 32 tokens of a sequence
  // Between launches, if any: [num_sequences * max_tiles * num_heads, 32] 16 bits, and maxima and sums.
  at::Tensor weights_, tile_max_, tile_sum_;
  at::Tensor combined_;                          // [num_sequences, num_heads, rank] float32
  std::vector<at::Tensor> log_sum_, projected_;  // of segments: [num_sequences, num_heads, ..]
  at::Tensor first_apart_[2], very_first_;
};

// The largest number of parts into which launches over latents and codes split tokens. num_blocks: of values' codes,
// which split the heads.
std::int64_t most_rank_parts(int multiprocessors, std::int64_t num_sequences,
                             std::int64_t num_blocks, std::int64_t rank, std::int64_t tokens);

std::int64_t whole_ranks(std::int64_t rank);  // rounded up as sums of latents are

}  // namespace kvc
