// A prompt that is read with the keys and values of a similar one (SemShareKV): the first layer computes all
// tokens, every later layer only some of those that the layer before it computed; the others keep what their
// matches in the donor had.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/prompt_reader.h"
#include "runtime/reuse/donor_file.h"
#include "runtime/reuse/reuse_options.h"
#include "runtime/reuse/reuse_report.h"

namespace kvc {

// The model that reads, on whatever device its weights are.
struct ReuseModel {
  const ModelConfig& config;
  const RopeTables& rope;
  const ModelWeights& weights;
  at::ScalarType dtype;  // of activations
  std::function<const LayerWeights&(int)> layer;

  at::Device device() const { return weights.lm_head.weight.device(); }
};
ReuseModel reuse_model(const Decoder& decoder);

struct ReusedPrompt {
  const std::vector<std::int64_t>& ids;
  const DonorPrompt& donor;
  at::Tensor match;  // [num_tokens] int64, the donor's token for each
};

// Keys, post-RoPE, and values [n, num_kv_heads, head_dim] of tokens of a layer, on the model's device, and their ascending
// positions on the CPU.
using StoreTokens = std::function<void(int layer, const at::Tensor& key, const at::Tensor& value,
                                       const at::Tensor& positions)>;

// Hidden state of the last token after the last layer, [1, hidden_size]. Gives `store` what each layer retains. Adds to the
// report what was recomputed and retained. Throws Interrupted.
at::Tensor read_reusing(const ReuseModel& model, const ReusedPrompt& prompt,
                        const ReuseOptions& options, const StoreTokens& store, ReuseReport& report,
                        const Stopped& stopped, PartTimes* times);

}  // namespace kvc
