#include "model/decoder.h"

#include <numeric>

#include "core/error.h"

namespace kvc {
namespace {

std::vector<std::string> replaced_names(const std::vector<bool>& replaced_kv) {
  std::vector<std::string> names;
  for (std::size_t layer = 0; layer < replaced_kv.size(); ++layer) {
    if (replaced_kv[layer]) {
      const std::string prefix = layer_prefix(static_cast<int>(layer)) + "self_attn.";
      names.push_back(prefix + "k_proj.weight");
      names.push_back(prefix + "v_proj.weight");
    }
  }
  return names;
}

std::int64_t bytes_of(const Linear& linear) {
  return static_cast<std::int64_t>((linear.weight.defined() ? linear.weight.nbytes() : 0) +
                                   (linear.bias.defined() ? linear.bias.nbytes() : 0));
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

std::int64_t bytes_of(const LayerWeights& weights) {
  return bytes_of(weights.input_layernorm) + bytes_of(weights.q_proj) + bytes_of(weights.k_proj) +
         bytes_of(weights.v_proj) + bytes_of(weights.o_proj) + bytes_of(weights.q_norm) +
         bytes_of(weights.k_norm) + bytes_of(weights.post_attention_layernorm) +
         bytes_of(weights.gate_proj) + bytes_of(weights.up_proj) + bytes_of(weights.down_proj);
}

}  // namespace

TokenBatch TokenBatch::of(const std::vector<std::vector<std::int64_t>>& sequences) {
  std::vector<std::int64_t> ids, positions;
  TokenBatch batch;
  for (const auto& sequence : sequences) {
    const std::size_t first = positions.size();
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    positions.resize(first + sequence.size());
    std::iota(positions.begin() + static_cast<std::ptrdiff_t>(first), positions.end(), 0);
    batch.lengths.push_back(static_cast<std::int64_t>(sequence.size()));
  }
  batch.ids = at::tensor(ids, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  return batch;
}

Decoder::Decoder(const Checkpoint& checkpoint, at::ScalarType dtype, std::vector<bool> replaced_kv)
    : config_(parse_model_config(checkpoint.config(),
                                 (checkpoint.directory() / "config.json").string())),
      dtype_(dtype),
      rope_(config_, dtype) {
  check_tensors(checkpoint, config_, replaced_names(replaced_kv));
  replaced_kv.resize(static_cast<std::size_t>(config_.num_layers), false);
  weights_ = load_model_weights(checkpoint, config_, dtype);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const bool with_kv_weights = !replaced_kv[static_cast<std::size_t>(layer)];
    layers_.push_back(load_layer(checkpoint, config_, layer, dtype, with_kv_weights));
    fuse_projections(layers_.back());
  }
}

std::int64_t Decoder::weight_bytes() const {
  std::int64_t bytes = bytes_of(weights_.embed_tokens) + bytes_of(weights_.norm);
  if (!config_.tied_embeddings) {
    bytes += bytes_of(weights_.lm_head);
  }
  for (const LayerWeights& layer : layers_) {
    bytes += bytes_of(layer);
  }
  return bytes;
}

at::Tensor Decoder::forward(const TokenBatch& batch, Attention& attention) const {
  at::Tensor hidden_states = at::embedding(weights_.embed_tokens, batch.ids);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    hidden_states = run_layer(config_, this->layer(layer), layer, hidden_states, batch, attention);
  }
  return hidden_states;
}

at::Tensor Decoder::logits(const at::Tensor& hidden_states) const {
  return compute_logits(config_, weights_, hidden_states);
}

}  // namespace kvc
