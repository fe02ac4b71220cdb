// Which part of a layer's keys stays rotary (arXiv 2502.07864, section 4.2). RoPE multiplies channels (i, i + head_dim/2),
// as a complex number, by the same e^(i theta) in every head, so it commutes with every unitary matrix across heads
// (there a real rotation, eq. 19). Principal directions across heads, weighted by what attention makes of an error,
// put most energy in few components. The layout's one rotary key has a slot for one component per frequency; a
// component may take a slot of another frequency f, or none (f = 0), and then the mean of
//   rho(f) = E e^(i (theta - f) (position of query - position of key))
// over the distances that attention looks back is what the query is multiplied by: the best guess of what is lost.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "export/mla/mla_shape.h"
#include "export/mla/mla_statistics.h"

namespace kvc {

struct RotarySlots {
  std::vector<std::int64_t>
      pair;  // [num_slots] the frequency (0 .. head_dim/2 - 1) whose component
             // a slot has; -1: none
  // Rows 2i and 2i+1 are the pair of slot i: rotary key = analysis * key. [2 * num_slots, kv_dim]
  at::Tensor analysis;
  at::Tensor synthesis;  // [kv_dim, 2 * num_slots]: the part of the key that the slots hold
  // Queries, (i, i + head_dim/2) as complex numbers, times these are the queries of the slots, and those
  // without position. complex128
  at::Tensor slot_query;   // [num_heads, num_slots], on the query's pair `pair[i]`
  at::Tensor plain_query;  // [num_heads, head_dim / 2]
  double loss = 0;         // squared error of attention's output by wrong positions, per token
};

RotarySlots choose_slots(const MlaStatistics& statistics, const ModelConfig& config,
                         const RopeConfig& rotary);

// Channels (i, i + size/2) of axis `dim` as complex numbers. float64 -> complex128, half the size there
at::Tensor as_complex_pairs(const at::Tensor& x, std::int64_t dim);

}  // namespace kvc
