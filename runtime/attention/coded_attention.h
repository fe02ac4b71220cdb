// Attention over the store of a coded layer.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/attention/partial_attention.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/store/coded_store.h"

namespace kvc {

// One layer of a store's.
struct CodedLayer {
  const KvPlan& plan;
  const CodedFactors& factors;
  const CodedStore& store;
  int index = 0;  // of the layer among the store's

  int layer() const { return store.layers.first_layer + index; }
};

// The last query [num_heads, head_dim] post-RoPE over the coded tokens from `first` on, through the kernel;
// at least one. Not where RoPE depends on the length of the text.
PartialAttention attend_codes_partly(const Decoder& decoder, const CodedLayer& layer,
                                     const at::Tensor& query, std::int64_t first);

// One sequence's queries, those of the last tokens. query [T, num_heads, head_dim] post-RoPE,
// positions [T]. [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_coded(const Decoder& decoder, const CodedLayer& layer, const at::Tensor& query,
                        const at::Tensor& positions);

}  // namespace kvc
