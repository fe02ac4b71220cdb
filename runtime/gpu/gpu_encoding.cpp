#include "runtime/gpu/gpu_compression.h"

#include <vector>

#include "runtime/compression/request_basis.h"
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
    const auto tokens = [&](const auto& visit) {
      in_chunks(count, [&](std::int64_t first, const at::Tensor& positions) {
        std::vector<LayerRows> layers;
        for (std::size_t index = 0; index < store_.layers.size(); ++index) {
          const StoredRows y = rows(index, first, positions);
          layers.push_back({y.key.flatten(1), y.value.flatten(1)});
        }
        visit(layers);
      });
    };
    encoders_ = fit_directions(plan_, spec_, tokens, encoders_, model_.device());
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
    std::vector<at::Tensor> latents, scores;
    in_chunks(count, [&](std::int64_t first, const at::Tensor& positions) {
      const EncodedTokens chunk = encode(first, positions);
      latents.push_back(chunk.latents);
      if (chunk.scores.defined()) {
        scores.push_back(chunk.scores);
      }
    });
    return {at::cat(latents), scores.empty() ? at::Tensor() : at::cat(scores)};
  }

 private:
  // Calls visit(first, positions) for pending rows from `first` on, some at a time.
  template <typename Visitor>
  void in_chunks(std::int64_t count, const Visitor& visit) const {
    const at::Tensor positions = store_.next_positions(sequence_, count);
    for (std::int64_t first = 0; first < count; first += kChunkTokens) {
      visit(plan_.compression.sink_tokens + first, positions.slice(0, first, first + kChunkTokens));
    }
  }

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
    if (spec_.basis != LatentBasis::kWeights) {
      return {principal(first, positions), {}};
    }
    if (plan_.compression.rule == MergeRule::kLs) {
      return encode_stacked(stacked_rows(first, positions), factors_.factors.encoder, rebuilt_);
    }
    if (store_.held_weighted) {
      return {store_.held_weighted->read(sequence_, first, count).to(at::kFloat),
              store_.held_score->read(sequence_, first, count).squeeze(1)};
    }
    const auto held = [&](std::size_t index) {
      return store_.layers[index].held_latent->read(sequence_, first, count).to(at::kFloat);
    };
    at::Tensor latent = held(0) * spec_.merge_weights.front();
    for (std::size_t index = 1; index < store_.layers.size(); ++index) {
      latent += held(index) * spec_.merge_weights[index];
    }
    return {latent, row_cosine(held(0), held(store_.layers.size() - 1))};
  }

  struct StoredRows {
    at::Tensor key, value;  // [n, num_kv_heads, head_dim] float32, keys before RoPE
  };
  StoredRows rows(std::size_t index, std::int64_t first, const at::Tensor& positions) const {
    const GpuGroupLayer& layer = store_.layers[index];
    const std::int64_t count = positions.size(0);
    const auto read = [&](const GpuRows& stored) {
      return stored.read_heads(sequence_, first, count, plan_.head_dim).to(at::kFloat);
    };
    return {model_.rope.unrotate(layer_of(index), read(*layer.pending_key), positions),
            read(*layer.pending_value)};
  }

  // y: [n, 2 * num_layers * kv_dim] float32.
  at::Tensor stacked_rows(std::int64_t first, const at::Tensor& positions) const {
    const auto without_bias = [](const at::Tensor& x, const at::Tensor& bias) {
      return bias.defined() ? x.flatten(1) - bias.to(at::kFloat) : x.flatten(1);
    };
    std::vector<at::Tensor> columns;
    for (std::size_t index = 0; index < store_.layers.size(); ++index) {
      const LayerWeights& weights = model_.layers[static_cast<std::size_t>(layer_of(index))];
      StoredRows y = rows(index, first, positions);
      if (weights.k_norm.defined()) {
        y.key = key_before_norm(y.key, weights.k_norm, rms(index, first, y.key, weights));
      }
      columns.push_back(without_bias(y.key, weights.k_proj.bias));
      columns.push_back(without_bias(y.value, weights.v_proj.bias));
    }
    return at::cat(columns, 1);
  }

  // What the norm divided keys by; where latents are kept instead, of the keys that they rebuild.
  at::Tensor rms(std::size_t index, std::int64_t first, const at::Tensor& key,
                 const LayerWeights& weights) const {
    const GpuGroupLayer& layer = store_.layers[index];
    if (layer.key_rms) {
      return layer.key_rms->read(sequence_, first, key.size(0));
    }
    const Linear rebuild{factors_.layers[index].tensors().key, weights.k_proj.bias};
    const at::Tensor latent = layer.held_latent->read(sequence_, first, key.size(0));
    return key_rms(rebuild(latent).view(key.sizes()), weights.k_norm);
  }

  // sum_l E_l y_l, without the mean's where there is one.
  at::Tensor principal(std::int64_t first, const at::Tensor& positions) const {
    at::Tensor key, value;
    for (std::size_t index = 0; index < store_.layers.size(); ++index) {
      const LayerEncoder& encoder = encoders_[index];
      const StoredRows y = rows(index, first, positions);
      const at::Tensor of_key = at::linear(y.key.flatten(1), encoder.key),
                       of_value = at::linear(y.value.flatten(1), encoder.value);
      key = index == 0 ? of_key : key + of_key;
      value = index == 0 ? of_value : value + of_value;
    }
    const at::Tensor latent = spec_.split_kv ? at::cat({key, value}, 1) : key + value;
    const at::Tensor& mean = factors_.factors.mean_latent;
    return mean.defined() ? latent - mean : latent;
  }

  int layer_of(std::size_t index) const { return spec_.first_layer + static_cast<int>(index); }

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
