// What fused layers read, written out from the definition.
#pragma once

#include <ATen/ATen.h>

#include <map>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "tests/runtime/factored_checkpoint.h"

namespace kvc::testing {

// Keys before RoPE and values of one pass' tokens, layer after layer; fused layers sum those of layers that came before.
class FusedDefinition {
 public:
  explicit FusedDefinition(const KvPlan& plan) : plan_(plan) {}

  struct Rows {
    at::Tensor key, value;  // [num_tokens, num_kv_heads, head_dim]
  };
  Rows rows(int layer, const AttentionInput& input) {
    for (const FusedLayer& fused : plan_.fused) {
      if (fused.layer == layer) {
        return {sum(fused, true), sum(fused, false)};
      }
    }
    keys_[layer] = input.weights.k_norm.over_heads(input.key);
    values_[layer] = input.value;
    return {keys_[layer], values_[layer]};
  }

 private:
  at::Tensor sum(const FusedLayer& layer, bool key) const {
    const std::vector<int>& sources = key ? layer.key_sources : layer.value_sources;
    const std::vector<int>& heads = key ? layer.key_heads : layer.value_heads;
    const at::Tensor weight = fused_weight(plan_, layer, key);
    at::Tensor total;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const auto index = static_cast<std::int64_t>(s);
      at::Tensor rows = (key ? keys_ : values_).at(sources[s]);
      if (!heads.empty()) {
        rows =
            rows.index_select(1, at::tensor(heads, at::kInt).view({-1, plan_.num_kv_heads})[index]);
      }
      at::Tensor term;
      if (layer.form == FusionForm::kFull) {
        term = at::linear(rows.flatten(1), weight.narrow(1, index * plan_.kv_dim(), plan_.kv_dim()))
                   .view_as(rows);
      } else if (key && layer.form == FusionForm::kComplex) {
        const at::Tensor z = at::complex(rows.narrow(2, 0, plan_.head_dim / 2),
                                         rows.narrow(2, plan_.head_dim / 2, plan_.head_dim / 2));
        const at::Tensor c = at::complex(weight[index][0], weight[index][1])
                                 .view({plan_.num_kv_heads, plan_.head_dim / 2});
        term = at::cat({at::real(z * c), at::imag(z * c)}, -1);
      } else {
        term = rows * weight[index].view({plan_.num_kv_heads, plan_.head_dim});
      }
      total = s == 0 ? term : total + term;
    }
    return total;
  }

  const KvPlan& plan_;
  std::map<int, at::Tensor> keys_, values_;
};

// Whole sequences.
class DefinedAttention : public Attention {
 public:
  DefinedAttention(const Decoder& decoder, const KvPlan& plan)
      : decoder_(decoder), definition_(plan) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const FusedDefinition::Rows rows = definition_.rows(layer, input);
    const auto rotate = [&](const at::Tensor& x) {
      return decoder_.rope().rotate(layer, x, batch.positions);
    };
    return causal_attention(rotate(input.query), rotate(rows.key), rows.value,
                            attention_rule(decoder_.config(), layer));
  }

 private:
  const Decoder& decoder_;
  FusedDefinition definition_;
};

}  // namespace kvc::testing
