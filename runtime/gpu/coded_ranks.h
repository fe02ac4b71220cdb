// The factors of coded layers on a GPU: what makes coefficients of exact rows, and keys and values of codes' levels, laid
// out as kernels read them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "model/config.h"
#include "model/rope.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/compression/coding.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/store/coded_store.h"

namespace kvc {

// One layer's keys and values from levels (code_level() times the token's gain), in float16: a channel's row of F,
// times the steps, and divided by its largest number, which is the channel's scale.
class CodedRanks {
 public:
  // Layer `index` of those coded together.
  CodedRanks(const CodedFactors& factors, const KvPlan& plan, const CodedLayers& layers, int index,
             const ModelConfig& config, const RopeTables& rope, at::Device device);

  // For kernels; of values sums, sequences and output are the caller's.
  RebuiltKeys keys() const;
  ProjectValues values() const;
  // What levels stand for, one block's [n, num_coefficients] after the other, float32 as the result.
  DecodedTokens decode(const std::vector<at::Tensor>& levels) const;
  std::int64_t bytes() const;

 private:
  // [n, num_kv_heads, rows of a head]
  at::Tensor product(const std::vector<at::Tensor>& levels, const at::Tensor& rows,
                     const at::Tensor& scale, const at::Tensor& offset) const;

  std::int64_t num_kv_heads_, head_dim_;
  at::Tensor channels_, angles_;           // int32, as KeyPairs
  at::Tensor key_, value_;                 // float16, rows padded as coded_width() says
  at::Tensor key_scale_, key_offset_;      // float32; offsets are means
  at::Tensor value_scale_, value_offset_;  // likewise
};

struct GpuCodedFactors {
  std::vector<CodedBlockFactors> blocks;  // [num_blocks]: encoder, mean and steps
  std::vector<CodedRanks> layers;         // [num_layers]

  std::int64_t bytes() const;
};

// Numbers of a token's coefficients as kernels take them: rounded up, and never none.
std::int64_t coded_width(std::int64_t most_coefficients);

// Of all layers that are coded together, in the order of coded_layers().
std::vector<GpuCodedFactors> to_gpu(const CodedFactors& factors, const KvPlan& plan,
                                    const ModelConfig& config, const RopeTables& rope,
                                    at::Device device);

}  // namespace kvc
