// The tensors of a plan's coded blocks, loaded once per engine; names in core/conversion_file.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "runtime/kernels/coded_keys.h"

namespace kvc {

// float32 where nothing is said; n stacked channels (core/kv_sources.h), k coefficients.
struct CodedBlockFactors {
  at::Tensor encoder;              // [k, n], float16 where that holds it
  at::Tensor value_decoder;        // [num_layers, channels of values, k]: F's rows of values
  at::Tensor mean;                 // [n]
  at::Tensor steps;                // [k]
  at::Tensor first_levels;         // [k], the value of code 0
  std::vector<CodedKeyRows> keys;  // [num_layers of the block, its KV heads]: F's rows of keys

  // F's rows of layer `index` of the block. Keys' are what the kernel's integers stand for, so that all ways to
  // attend rebuild the same ones. [channels, k]
  at::Tensor key_rows(int index) const;
  at::Tensor value_rows(int index) const { return value_decoder[index]; }
};

struct CodedFactors {
  std::vector<CodedBlockFactors> blocks;  // [plan.coded.size()]

  std::int64_t bytes() const;
};

// Throws Error naming a tensor that is missing or misshapen, or steps that are not positive.
CodedFactors load_coded_factors(const Checkpoint& checkpoint, const KvPlan& plan);

}  // namespace kvc
