// The factors of coded layers on a GPU: encoders of exact rows (coded_encoder.h), and decoders of codes' levels to keys and
// values, in the kernels' layout.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "model/config.h"
#include "model/rope.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/compression/coding.h"
#include "runtime/gpu/coded_encoder.h"
#include "runtime/gpu/coded_key_rows.h"
#include "runtime/gpu/key_places.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/store/coded_store.h"

namespace kvc {

// One layer's keys and values from levels (code_level() times the token's gain), in float16: a channel's row of F,
// times the steps, and divided by its largest number, which is the channel's scale. Keys that are met have key_rows()
// instead.
class CodedRanks {
 public:
  // Rows of all heads, [num_kv_heads, head_dim, width] and [num_kv_heads, head_dim, 1] float32.
  struct HeadRows {
    at::Tensor projection, mean;
  };

  // Layer `index` of those coded together.
  CodedRanks(const CodedFactors& factors, const KvPlan& plan, const CodedLayers& layers, int index,
             const ModelConfig& config, const RopeTables& rope, at::Device device);

  // For kernels; the caller sets sums, sequences and output of values.
  const GpuKeyRows& key_rows() const { return key_rows_; }
  RebuiltKeys keys() const;
  ProjectValues values() const;
  // Decodes levels, one block's [n, num_coefficients] after the other, to float32. turn_back: undoes RoPE. begins_text: a
  // text's first token is the first of them.
  DecodedTokens decode(const std::vector<at::Tensor>& levels, const TurnKeys& turn_back,
                       bool begins_text) const;
  std::int64_t bytes() const;

 private:
  void set_rebuilt_keys(const PairPlaces& pairs, const HeadRows& key, at::Device device);
  // Before RoPE, [n, num_kv_heads, head_dim].
  at::Tensor keys_of(const std::vector<at::Tensor>& levels, const TurnKeys& turn_back) const;
  // [n, num_kv_heads, rows of a head]
  at::Tensor product(const std::vector<at::Tensor>& levels, const at::Tensor& rows,
                     const at::Tensor& scale, const at::Tensor& offset) const;

  std::int64_t num_kv_heads_, head_dim_;
  std::vector<CodedParts> parts_;  // of the blocks
  GpuKeyRows key_rows_;
  at::Tensor channels_, angles_;       // int32, as KeyPairs
  at::Tensor key_order_;               // int64 [head_dim]: where a head's rows have its channels
  at::Tensor key_, value_;             // float16, rows padded as coded_width() says
  at::Tensor key_scale_, key_offset_;  // float32; offsets are means
  at::Tensor value_scale_, value_offset_;  // likewise
  at::Tensor first_key_, first_value_;  // float32 [num_kv_heads, head_dim], where codes_first_token
};

struct GpuCodedFactors {
  GpuCodedEncoder encoder;
  std::vector<CodedRanks> layers;  // [num_layers]

  std::int64_t bytes() const;
};

// Width of a token's coefficients for kernels: rounded up, never zero.
std::int64_t coded_width(std::int64_t most_coefficients);

// One per set of layers that are coded together, in the order of coded_layers().
std::vector<GpuCodedFactors> to_gpu(const CodedFactors& factors, const KvPlan& plan,
                                    const ModelConfig& config, const RopeTables& rope,
                                    at::Device device);

}  // namespace kvc
