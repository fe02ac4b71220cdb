#include "runtime/compression/principal_encoding.h"

#include <vector>

#include "runtime/compression/chunk_landmarks.h"
#include "runtime/compression/key_forms.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/store/row_store.h"
#include "runtime/store/token_counts.h"

namespace kvc {
namespace {

class PrincipalGroup {
 public:
  explicit PrincipalGroup(const GroupView& group) : group_(group) {}

  // The `positions.size(0)` oldest pending tokens that are not sinks.
  void compress(const at::Tensor& positions, PrincipalStep step, LatentStore& store) const {
    const std::int64_t count = positions.size(0), first_row = group_.store.merged().num_rows();
    const bool is_new = step == PrincipalStep::kNewBasis;
    const std::vector<LayerEncoder> encoders = is_new                ? fit(positions)
                                               : group_.plan.request ? last_basis()
                                                                     : group_.factors.encoders;
    for (std::int64_t first = 0; first < count; first += tokens_at_once(count)) {
      move(positions.slice(0, first, first + tokens_at_once(count)), encoders, store);
    }
    if (is_new) {
      std::vector<at::Tensor> key, value;
      for (const LayerEncoder& encoder : encoders) {
        key.push_back(encoder.key.t());
        value.push_back(encoder.value.t());
      }
      store.add_basis(first_row, key, value);
    }
  }

  // Pending rows from `begin` on. [n, rank]
  at::Tensor encode(std::int64_t begin, const at::Tensor& positions,
                    const std::vector<LayerEncoder>& encoders, at::ScalarType type) const {
    return principal_latents(group_.spec(), positions, rows_from(begin), encoders,
                             group_.factors.mean_latent, type);
  }

 private:
  // Latents of a part of a prompt take the place of its exact rows before the next part's are made. Encoding takes
  // kChunkTokens at a time from the first, as if there was one part. Chunks are chosen among all.
  std::int64_t tokens_at_once(std::int64_t count) const {
    const std::int64_t chunks = (rows_decided_at_once(count) + kChunkTokens - 1) / kChunkTokens;
    return group_.plan.selective ? count : chunks * kChunkTokens;
  }

  void move(const at::Tensor& positions, const std::vector<LayerEncoder>& encoders,
            LatentStore& store) const {
    const std::int64_t count = positions.size(0), sinks = group_.plan.compression.sink_tokens;
    const at::Tensor latents = encode(sinks, positions, encoders, encoded_type());
    std::vector<NewChunks> chunks;
    if (group_.plan.selective) {
      chunks = chunks_of(*group_.plan.selective, store, sinks, count);
    }
    store.decide(at::ones({count}, at::kBool), positions, latents);
    append_chunks(chunks, store);
  }

  // What the store makes of latents.
  at::ScalarType encoded_type() const {
    const RowStore& stored = group_.store.merged();
    return stored.dtype() == at::kBFloat16 && !stored.has_codes() ? at::kBFloat16 : at::kFloat;
  }

  // Pending rows from `first` on; of a model's own latents these and nothing.
  LayerRows rows(int index, std::int64_t first, const at::Tensor& positions) const {
    const int layer = group_.layer(index);
    const KeyValueStore& pending = group_.store.pending(index);
    const std::int64_t count = positions.size(0);
    if (group_.plan.own_widths) {
      return {pending.key.rows(first, count, at::kFloat).flatten(1),
              at::empty({count, 0}, at::kFloat)};
    }
    at::Tensor key = pending.key.rows(first, count, at::kFloat);
    key = stores_raw_keys(group_.decoder.config(), layer)
              ? group_.decoder.layer(layer).k_norm.over_heads(key)
              : group_.decoder.rope().unrotate(layer, key, positions);
    return {key.flatten(1), pending.value.rows(first, count, at::kFloat).flatten(1)};
  }

  GroupRows rows_from(std::int64_t begin) const {
    return [this, begin](int index, std::int64_t first, const at::Tensor& positions) {
      return rows(index, begin + first, positions);
    };
  }

  std::vector<LayerEncoder> last_basis() const {
    const RequestBasis& basis = group_.store.bases().back();
    std::vector<LayerEncoder> encoders;
    for (std::size_t index = 0; index < basis.key.size(); ++index) {
      encoders.push_back(
          {basis.key[index].rows(at::kFloat).t(), basis.value[index].rows(at::kFloat).t()});
    }
    return encoders;
  }

  // Principal directions of the tokens. An earlier basis is where the subspace solver starts.
  std::vector<LayerEncoder> fit(const at::Tensor& positions) const {
    return fit_directions(
        group_.plan, group_.spec(), positions, rows_from(group_.plan.compression.sink_tokens),
        group_.store.bases().empty() ? std::vector<LayerEncoder>() : last_basis());
  }

  GroupView group_;
};

}  // namespace

void compress_principal(const Decoder& decoder, const LatentFactors& factors, KvDtype dtype,
                        const std::vector<std::int64_t>& counts, KvCache& cache) {
  const KvPlan& plan = cache.plan();
  const PrincipalStep step = principal_step(plan, cache.tokens(), counts, dtype);
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    compress_principal_group(decoder, factors, static_cast<int>(group), counts[group], step, cache);
  }
}

void compress_principal_group(const Decoder& decoder, const LatentFactors& factors, int group,
                              std::int64_t count, PrincipalStep step, KvCache& cache) {
  LatentStore& store = cache.group(group);
  if (count > 0 && step != PrincipalStep::kKeepExact) {
    const GroupFactors& own = factors.groups[static_cast<std::size_t>(group)];
    PrincipalGroup(GroupView{decoder, cache.plan(), group, own, store})
        .compress(store.next_positions(count), step, store);
  }
}

at::Tensor principal_latents(const LatentGroup& group, const at::Tensor& positions,
                             const GroupRows& rows, const std::vector<LayerEncoder>& encoders,
                             const at::Tensor& mean, at::ScalarType type) {
  const at::TensorOptions options = encoders.front().key.options();
  const at::Tensor all = at::empty({positions.size(0), group.rank}, options.dtype(type));
  for (std::int64_t first = 0; first < positions.size(0); first += kChunkTokens) {
    const at::Tensor own = positions.slice(0, first, first + kChunkTokens);
    at::Tensor key = at::zeros({own.size(0), group.key_width()}, options),
               value = at::zeros({own.size(0), group.value_width()}, options);
    for (int index = 0; index < group.num_layers; ++index) {
      const LayerEncoder& encoder = encoders[static_cast<std::size_t>(index)];
      const LayerRows y = rows(index, first, own);
      key.addmm_(y.key, encoder.key.t());
      value.addmm_(y.value, encoder.value.t());
    }
    at::Tensor latents = group.split_kv ? at::cat({key, value}, 1) : key + value;
    if (mean.defined()) {
      latents -= mean;
    }
    all.narrow(0, first, own.size(0)).copy_(latents);
  }
  return all;
}

at::Tensor encode_principal(const GroupView& group, std::int64_t first,
                            const at::Tensor& positions) {
  return PrincipalGroup(group).encode(first, positions, group.factors.encoders, at::kFloat);
}

}  // namespace kvc
