#include "model/decoder.h"

#include <numeric>

#include "core/error.h"

namespace kvc {
namespace {

std::vector<std::string> replaced_names(const ModelConfig& config,
                                        const std::vector<bool>& replaced_kv) {
  std::vector<std::string> names;
  for (int layer = 0; layer < static_cast<int>(replaced_kv.size()); ++layer) {
    for (const ProjectionRows& rows : {key_rows(config, layer), value_rows(config, layer)}) {
      if (replaced_kv[static_cast<std::size_t>(layer)] && rows.is_whole()) {
        names.push_back(rows.tensor);
      }
    }
  }
  return names;
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

std::int64_t bytes_of(const Linear& linear) {
  return bytes_of(linear.weight) + bytes_of(linear.bias) + bytes_of(linear.scales);
}

std::int64_t bytes_of(const Norm& norm) { return bytes_of(norm.weight) + bytes_of(norm.bias); }

std::int64_t bytes_of(const MlaWeights& weights) {
  return bytes_of(weights.q_a_proj) + bytes_of(weights.q_a_norm) + bytes_of(weights.q_proj) +
         bytes_of(weights.kv_a_proj) + bytes_of(weights.kv_a_norm) + bytes_of(weights.kv_b_proj);
}

std::int64_t bytes_of(const MoeWeights& weights) {
  return bytes_of(weights.router) + bytes_of(weights.gate_up) + bytes_of(weights.down) +
         bytes_of(weights.shared_gate_up) + bytes_of(weights.shared_down) +
         bytes_of(weights.shared_gate);
}

std::int64_t bytes_of(const LayerWeights& weights) {
  std::int64_t bytes = bytes_of(weights.mla) + bytes_of(weights.experts);
  for (const Norm* norm :
       {&weights.input_norm, &weights.q_norm, &weights.k_norm, &weights.attention_output_norm,
        &weights.mlp_norm, &weights.mlp_output_norm}) {
    bytes += bytes_of(*norm);
  }
  for (const Linear* linear : {&weights.q_proj, &weights.k_proj, &weights.v_proj, &weights.o_proj,
                               &weights.gate_proj, &weights.up_proj, &weights.down_proj}) {
    bytes += bytes_of(*linear);
  }
  return bytes;
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

Decoder::Decoder(const Checkpoint& checkpoint, at::ScalarType dtype, std::vector<bool> replaced_kv,
                 WeightType type)
    : config_(read_model_config(checkpoint)), dtype_(dtype), rope_(config_, dtype) {
  check_tensors(checkpoint, config_, replaced_names(config_, replaced_kv));
  replaced_kv.resize(static_cast<std::size_t>(config_.num_layers), false);
  weights_ = load_model_weights(checkpoint, config_, dtype, type);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const bool with_kv_weights = !replaced_kv[static_cast<std::size_t>(layer)];
    layers_.push_back(load_layer(checkpoint, config_, layer, dtype, with_kv_weights, type));
    fuse_projections(layers_.back());
  }
}

std::int64_t Decoder::weight_bytes() const {
  std::int64_t bytes = bytes_of(weights_.lm_head) + bytes_of(weights_.norm);
  if (!config_.tied_embeddings) {
    bytes += bytes_of(weights_.embed_tokens);
  }
  for (const LayerWeights& layer : layers_) {
    bytes += bytes_of(layer);
  }
  return bytes;
}

at::Tensor Decoder::forward(const TokenBatch& batch, Attention& attention) const {
  at::Tensor hidden_states = embed(config_, weights_, batch.ids, dtype_);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    hidden_states = run_layer(config_, this->layer(layer), layer, hidden_states, batch, attention);
  }
  return hidden_states;
}

at::Tensor Decoder::logits(const at::Tensor& hidden_states) const {
  return compute_logits(config_, weights_, hidden_states);
}

}  // namespace kvc
