#include "runtime/gpu/gpu_model.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/config.h"
#include "model/tensor_memory.h"
#include "runtime/plan_source.h"

namespace kvc {
namespace {

std::int64_t layer_bytes(const LayerWeights& layer) {
  std::int64_t bytes = 0;
  for (const Norm* norm : {&layer.input_norm, &layer.q_norm, &layer.k_norm,
                           &layer.attention_output_norm, &layer.mlp_norm, &layer.mlp_output_norm}) {
    bytes += tensor_bytes(norm->weight) + tensor_bytes(norm->bias);
  }
  // Projections that share a fused matrix are counted there.
  const bool has_qkv = layer.qkv_proj.weight.defined(),
             has_gate_up = layer.gate_up_proj.weight.defined();
  std::vector<const Linear*> linears = {&layer.o_proj, &layer.down_proj};
  if (has_qkv) {
    linears.push_back(&layer.qkv_proj);
  } else {
    linears.push_back(&layer.q_proj);
  }
  if (has_gate_up) {
    linears.push_back(&layer.gate_up_proj);
  } else {
    linears.push_back(&layer.up_proj);
  }
  for (const Linear* linear : linears) {
    bytes +=
        tensor_bytes(linear->weight) + tensor_bytes(linear->bias) + tensor_bytes(linear->scales);
  }
  return bytes;
}

// Only the fused matrices go to the device: no weight is there twice. Biases of keys and values stay, which latents
// leave out.
LayerWeights to_gpu(LayerWeights layer, at::Device device) {
  if (layer.qkv_proj.weight.defined()) {
    layer.q_proj = {};
    layer.k_proj = {{}, layer.k_proj.bias};
    layer.v_proj = {{}, layer.v_proj.bias};
  }
  if (layer.gate_up_proj.weight.defined()) {
    layer.gate_proj = layer.up_proj = {};
  }
  return to_device(std::move(layer), device);
}

FusedFactors to_gpu(FusedFactors factors, at::Device device) {
  for (Fusion* fusion : {&factors.weights.key, &factors.weights.value}) {
    fusion->weight = fusion->weight.to(device);
  }
  factors.pairs.first = factors.pairs.first.to(device);
  factors.pairs.second = factors.pairs.second.to(device);
  return factors;
}

}  // namespace

std::int64_t GpuModel::bytes() const {
  std::int64_t sum = tensor_bytes(weights.lm_head.weight) + tensor_bytes(weights.lm_head.scales) +
                     tensor_bytes(weights.norm.weight) + tensor_bytes(weights.norm.bias) +
                     kvc::bytes_of(fused);
  if (!config.tied_embeddings) {
    sum += tensor_bytes(weights.embed_tokens);
  }
  for (const LayerWeights& layer : layers) {
    sum += layer_bytes(layer);
  }
  for (const GpuGroupFactors& group : groups) {
    sum += group.bytes();
  }
  for (const GpuCodedFactors& factors : coded) {
    sum += factors.bytes();
  }
  return sum;
}

RopeRows GpuModel::angles(int layer, std::int64_t num_positions) const {
  const int table = config.layer(layer).rope;
  if (table < 0) {
    return {};
  }
  RopeRows& known = angle_tables[table];
  if (!known.cos.defined() || known.cos.size(0) < num_positions) {
    known = {};  // its memory first
    const RopeRows rows = rope.rows_of_positions(layer, num_positions);
    known = {rows.cos.to(device()), rows.sin.to(device()), rows.interleaved};
  }
  return known;
}

RopeRows GpuModel::angles_from(int layer, std::int64_t first, std::int64_t count) const {
  RopeRows rows = angles(layer, first + count);
  if (rows.cos.defined()) {
    rows.cos = rows.cos.narrow(0, first, count);
    rows.sin = rows.sin.narrow(0, first, count);
  }
  return rows;
}

at::Tensor GpuModel::rotate(int layer, const at::Tensor& key, std::int64_t first) const {
  return rope.rotate(layer, key, angles_from(layer, first, key.size(0)));
}

at::Tensor GpuModel::unrotate(int layer, const at::Tensor& key, std::int64_t first) const {
  return rope.unrotate(layer, key, angles_from(layer, first, key.size(0)));
}

const FusedFactors* GpuModel::fused_of(int layer) const {
  const auto found = std::find_if(fused.begin(), fused.end(), [&](const FusedFactors& factors) {
    return factors.layer.layer == layer;
  });
  return found == fused.end() ? nullptr : &*found;
}

std::vector<StoredLayers> GpuModel::sources_of(int layer) const {
  const FusedFactors* factors = fused_of(layer);
  if (factors == nullptr) {
    return {{layer, layer}};
  }
  std::vector<StoredLayers> sources;
  for (std::size_t i = 0; i < factors->layer.key_sources.size(); ++i) {
    sources.push_back({factors->layer.key_sources[i], factors->layer.value_sources[i]});
  }
  return sources;
}

DeviceRope device_rope(const RopeRows& rows) {
  return rows.cos.defined()
             ? DeviceRope{rows.cos.const_data_ptr<float>(), rows.sin.const_data_ptr<float>(),
                          static_cast<int>(rows.cos.size(1)), rows.interleaved}
             : DeviceRope{};
}

GpuModel load_gpu_model(const Checkpoint& checkpoint, const KvPlan& plan, at::ScalarType dtype,
                        WeightType type, at::Device device, std::int64_t free_bytes) {
  const ModelConfig config = read_model_config(checkpoint);
  const auto expected = config.num_parameters() * (type == WeightType::kInt8 ? 17 : 32) / 16;
  KVC_CHECK(expected < free_bytes,
            "--device cuda: about {} bytes of weights, the GPU has {} free; use a smaller model or "
            "--device cpu",
            expected, free_bytes);
  GpuModel model{config, dtype, RopeTables(config, dtype), {}, {}, {}, {}, {}};
  model.weights = load_model_weights(checkpoint, config, dtype, type);
  model.weights = to_device(std::move(model.weights), device);
  if (config.tied_embeddings && model.weights.embed_tokens.defined()) {
    model.weights.embed_tokens = model.weights.lm_head.weight;  // moved twice
  }
  const std::vector<bool> replaced = replaced_layers(plan);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto index = static_cast<std::size_t>(layer);
    LayerWeights weights =
        load_layer(checkpoint, config, layer, dtype, replaced.empty() || !replaced[index], type);
    fuse_projections(weights);
    model.layers.push_back(to_gpu(std::move(weights), device));
  }
  KvFactors factors = load_kv_factors(checkpoint, plan, config, dtype);
  for (FusedFactors& fused : factors.fused) {
    model.fused.push_back(to_gpu(std::move(fused), device));
  }
  for (std::size_t group = 0; group < factors.latent.groups.size(); ++group) {
    model.groups.push_back(to_gpu(factors.latent.groups[group], plan.groups[group], config,
                                  model.rope, model.layers, dtype, device));
  }
  model.coded = to_gpu(factors.coded, plan, config, model.rope, device);
  return model;
}

}  // namespace kvc
