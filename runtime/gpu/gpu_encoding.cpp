#include "runtime/gpu/gpu_compression.h"

#include <vector>

#include "runtime/compression/principal_encoding.h"
#include "runtime/store/row_store.h"

namespace kvc {
namespace {

// The oldest pending tokens of one sequence and group that are no sinks.
class GroupEncoder {
 public:
  GroupEncoder(const GpuModel& model, const GpuCache& cache, int group, std::size_t sequence)
      : model_(model),
        plan_(cache.plan()),
        spec_(plan_.groups[static_cast<std::size_t>(group)]),
        factors_(model.groups[static_cast<std::size_t>(group)]),
        store_(cache.group(group)),
        sequence_(sequence) {
    if (spec_.basis == LatentBasis::kRequest) {
      encoders_ = store_.num_bases(sequence) > 0 ? stored_basis() : std::vector<LayerEncoder>();
      return;
    }
    encoders_ = factors_.factors.encoders;
    for (const RankFactors& layer : factors_.merged_layers) {
      rebuilt_.push_back(layer.tensors());
    }
  }

  // Principal directions of the tokens, with which encode() goes on. Those of before are where the subspace solver starts.
  void fit(std::int64_t count) {
    encoders_ = fit_directions(plan_, spec_, store_.next_positions(sequence_, count), group_rows(),
                               encoders_, model_.device());
  }

  // As the cache stores them.
  std::vector<GpuGroup::BasisRows> basis() const {
    std::vector<GpuGroup::BasisRows> layers;
    for (std::size_t index = 0; index < encoders_.size(); ++index) {
      layers.push_back(
          {factors_.merged_layers[index].to_pairs(encoders_[index].key.t().contiguous()),
           encoders_[index].value.t()});
    }
    return layers;
  }

  EncodedTokens encode(std::int64_t count) const {
    const at::Tensor positions = store_.next_positions(sequence_, count);
    if (spec_.basis != LatentBasis::kWeights) {
      return {principal_latents(spec_, positions, group_rows(), encoders_,
                                factors_.factors.mean_latent, at::kFloat),
              {}};
    }
    std::vector<at::Tensor> latents, scores;
    for (std::int64_t first = 0; first < count; first += kChunkTokens) {
      const EncodedTokens chunk = encode(plan_.compression.sink_tokens + first,
                                         positions.slice(0, first, first + kChunkTokens));
      latents.push_back(chunk.latents);
      scores.push_back(chunk.scores);
    }
    return {at::cat(latents), at::cat(scores)};
  }

 private:
  // The last one.
  std::vector<LayerEncoder> stored_basis() const {
    const auto last = static_cast<std::size_t>(store_.num_bases(sequence_) - 1);
    std::vector<LayerEncoder> encoders;
    for (std::size_t index = 0; index < store_.layers.size(); ++index) {
      const GpuBasis& basis = store_.layers[index].bases[last];
      const at::Tensor key = basis.key.read(sequence_, 0, plan_.kv_dim()),
                       value = basis.value.read(sequence_, 0, plan_.kv_dim());
      encoders.push_back({factors_.merged_layers[index].from_pairs(key).to(at::kFloat).t(),
                          value.to(at::kFloat).t()});
    }
    return encoders;
  }

  // Pending rows from `first` on.
  EncodedTokens encode(std::int64_t first, const at::Tensor& positions) const {
    const std::int64_t count = positions.size(0);
    if (plan_.compression.rule == MergeRule::kLs) {
      return encode_stacked(stacked_rows(first, positions), factors_.factors.encoder, rebuilt_);
    }
    if (store_.held_weighted) {
      return {store_.held_weighted->read(sequence_, first, count).to(at::kFloat),
              store_.held_score->read(sequence_, first, count).squeeze(1)};
    }
    return encode_weighted(spec_, [&](int index) {
      return layer_rows(index).held_latent->read(sequence_, first, count).to(at::kFloat);
    });
  }

  // [n, num_kv_heads, head_dim] float32, keys before RoPE.
  LayerRows rows(int index, std::int64_t first, const at::Tensor& positions) const {
    const GpuGroupLayer& layer = layer_rows(index);
    const auto read = [&](const GpuRows& stored) {
      return stored.read_heads(sequence_, first, positions.size(0), plan_.head_dim).to(at::kFloat);
    };
    return {model_.rope.unrotate(spec_.first_layer + index, read(*layer.pending_key), positions),
            read(*layer.pending_value)};
  }
  // The tokens' that are no sinks.
  GroupRows group_rows() const {
    return [this](int index, std::int64_t first, const at::Tensor& positions) {
      const LayerRows y = rows(index, plan_.compression.sink_tokens + first, positions);
      return LayerRows{y.key.flatten(1), y.value.flatten(1)};
    };
  }

  // y: [n, 2 * num_layers * kv_dim] float32.
  at::Tensor stacked_rows(std::int64_t first, const at::Tensor& positions) const {
    std::vector<at::Tensor> columns;
    for (int index = 0; index < spec_.num_layers; ++index) {
      const LayerWeights& weights =
          model_.layers[static_cast<std::size_t>(spec_.first_layer + index)];
      const LayerRows y = rows(index, first, positions);
      columns.push_back(stacked_layer(
          weights, y.key, y.value,
          weights.k_norm.defined() ? rms(index, first, y.key, weights) : at::Tensor()));
    }
    return at::cat(columns, 1);
  }

  // What the norm divided keys by; where latents are kept instead, of the keys that they rebuild.
  at::Tensor rms(int index, std::int64_t first, const at::Tensor& key,
                 const LayerWeights& weights) const {
    const GpuGroupLayer& layer = layer_rows(index);
    const std::int64_t count = key.size(0);
    return layer.key_rms ? layer.key_rms->read(sequence_, first, count)
                         : rebuilt_key_rms(
                               weights, factors_.layers[static_cast<std::size_t>(index)].tensors(),
                               layer.held_latent->read(sequence_, first, count), key.sizes());
  }

  const GpuGroupLayer& layer_rows(int index) const {
    return store_.layers[static_cast<std::size_t>(index)];
  }

  const GpuModel& model_;
  const KvPlan& plan_;
  const LatentGroup& spec_;
  const GpuGroupFactors& factors_;
  const GpuGroup& store_;
  std::size_t sequence_;
  std::vector<Reconstruction> rebuilt_;  // [num_layers] of merged latents
  std::vector<LayerEncoder> encoders_;   // [num_layers] of principal directions
};

}  // namespace

EncodedTokens encode_gpu_pending(const GpuModel& model, const GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count) {
  return GroupEncoder(model, cache, group, sequence).encode(count);
}

EncodedTokens encode_gpu_request(const GpuModel& model, GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count) {
  GroupEncoder encoder(model, cache, group, sequence);
  encoder.fit(count);
  EncodedTokens encoded = encoder.encode(count);
  cache.group(group).add_basis(sequence, encoder.basis());
  return encoded;
}

}  // namespace kvc
