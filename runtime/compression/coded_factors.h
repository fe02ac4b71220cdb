// The tensors of a plan's coded blocks, loaded once per engine; names in core/conversion_file.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/config.h"
#include "runtime/kernels/coded_keys.h"

namespace kvc {

// float32 unless stated; n stacked channels (core/kv_sources.h), k coefficients.
struct CodedBlockFactors {
  at::Tensor encoder;        // [k, n], float16 if accurate enough
  at::Tensor mean;           // [n]
  at::Tensor first_mean{};   // [n] in place of it for a text's first token, where codes_first_token
  at::Tensor key_mean;       // [num_layers, channels of keys]: its part; undefined without keys
  at::Tensor value_mean;     // [num_layers, channels of values]; undefined without values
  at::Tensor value_decoder;  // [num_layers, channels of values, k]: F's rows of values, likewise
  at::Tensor steps;          // [k]
  at::Tensor first_levels;   // [k], the value of code 0
  std::vector<CodedKeyRows> keys;  // [num_layers of the block, its KV heads]: F's rows of keys
  // What the first token's keys and values have besides, where codes_first_token. Shapes of key_mean and value_mean.
  at::Tensor first_key{}, first_value{};

  // F's rows for layer `index` of the block. Rows of keys have the rounding of the kernel's integers, so all
  // forms of attention rebuild the same keys. [channels, k]
  at::Tensor key_rows(int index) const;
  at::Tensor value_rows(int index) const { return value_decoder[index]; }
};

struct CodedFactors {
  std::vector<CodedBlockFactors> blocks;  // [plan.coded.size()]

  std::int64_t bytes() const;
};

// Throws Error naming a tensor that is missing or has another shape, or steps that are not
// positive.
CodedFactors load_coded_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                const ModelConfig& config);

}  // namespace kvc
