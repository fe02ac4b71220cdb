#include "runtime/compression/latent_encoding.h"

#include <algorithm>
#include <vector>

#include "runtime/compression/key_forms.h"
#include "runtime/store/row_store.h"

namespace kvc {
namespace {

at::Tensor read(const RowStore& store, const std::vector<RowRun>& rows,
                at::ScalarType dtype = at::kFloat) {
  return rows.size() == 1 ? store.rows(rows.front().first, rows.front().count, dtype)
                          : store.rows(rows, dtype);
}

at::Tensor without_bias(const at::Tensor& rows, const at::Tensor& bias) {
  return bias.defined() ? rows - bias.to(at::kFloat) : rows;
}

// What the norm divided the heads of `key` by.
at::Tensor rms_of(const GroupView& group, const at::Tensor& key, int index,
                  const std::vector<RowRun>& rows) {
  if (group.store.holds_key_rms()) {
    return read(group.store.held(index), rows);
  }
  // Latents are kept instead: the rebuilt key has the norm's scale.
  const Reconstruction& layer = group.factors.layers[static_cast<std::size_t>(index)];
  return rebuilt_key_rms(group.decoder.layer(group.layer(index)), layer,
                         read(group.store.held(index), rows, layer.key.scalar_type()), key.sizes());
}

// y: [n, 2 * num_layers * kv_dim] float32.
at::Tensor stacked_rows(const GroupView& group, const std::vector<RowRun>& rows,
                        const at::Tensor& positions) {
  const Decoder& decoder = group.decoder;
  std::vector<at::Tensor> columns;
  for (int index = 0; index < group.spec().num_layers; ++index) {
    const int layer = group.layer(index);
    const LayerWeights& weights = decoder.layer(layer);
    const KeyValueStore& pending = group.store.pending(index);
    at::Tensor key = read(pending.key, rows), rms;
    if (!stores_raw_keys(decoder.config(), layer)) {
      key = decoder.rope().unrotate(layer, key, positions);
      rms = weights.k_norm.defined() ? rms_of(group, key, index, rows) : rms;
    }
    columns.push_back(stacked_layer(weights, key, read(pending.value, rows), rms));
  }
  return at::cat(columns, 1);
}

// For some pending rows.
EncodedTokens encode(const GroupView& group, const std::vector<RowRun>& rows,
                     const at::Tensor& positions) {
  const LatentStore& store = group.store;
  if (group.plan.compression.rule == MergeRule::kLs) {
    return encode_stacked(stacked_rows(group, rows, positions), group.factors.encoder,
                          group.factors.merged_layers);
  }
  if (!store.keeps_latents()) {
    return {read(store.held(0), rows), read(store.held(1), rows)};
  }
  return encode_weighted(group.spec(), [&](int index) { return read(store.held(index), rows); });
}

// Calls visit(runs, positions) for the rows, some at a time.
template <typename Visitor>
void in_chunks(const std::vector<std::int64_t>& rows, const at::Tensor& positions,
               const Visitor& visit) {
  const auto count = static_cast<std::int64_t>(rows.size());
  for (std::int64_t first = 0; first < count; first += kChunkTokens) {
    const std::int64_t last = std::min(first + kChunkTokens, count);
    std::vector<RowRun> runs;
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t row = rows[static_cast<std::size_t>(i)];
      if (!runs.empty() && runs.back().first + runs.back().count == row) {
        ++runs.back().count;
      } else {
        runs.push_back({row, 1});
      }
    }
    visit(runs, positions.narrow(0, first, last - first));
  }
}

}  // namespace

at::Tensor stacked_layer(const LayerWeights& weights, const at::Tensor& key,
                         const at::Tensor& value, const at::Tensor& rms) {
  const at::Tensor plain = rms.defined() ? key_before_norm(key, weights.k_norm, rms) : key;
  return at::cat({without_bias(plain.flatten(1), weights.k_proj.bias),
                  without_bias(value.flatten(1), weights.v_proj.bias)},
                 1);
}

EncodedTokens encode_weighted(const LatentGroup& group,
                              const std::function<at::Tensor(int index)>& held) {
  at::Tensor latent;
  for (int index = 0; index < group.num_layers; ++index) {
    const at::Tensor term = held(index) * group.merge_weights[static_cast<std::size_t>(index)];
    latent = index == 0 ? term : latent + term;
  }
  return {latent, row_cosine(held(0), held(group.num_layers - 1))};
}

EncodedTokens encode_stacked(const at::Tensor& stacked, const at::Tensor& encoder,
                             const std::vector<Reconstruction>& layers) {
  const at::Tensor latent = at::linear(stacked, encoder);
  at::Tensor lost = at::zeros({stacked.size(0)}, stacked.options());
  std::int64_t column = 0;
  for (const Reconstruction& layer : layers) {
    for (const at::Tensor& proj : {layer.key, layer.value}) {
      const at::Tensor rebuilt = at::linear(latent, proj.to(at::kFloat));
      lost += (stacked.narrow(1, column, proj.size(0)) - rebuilt).square().sum(1);
      column += proj.size(0);
    }
  }
  // A token of all zeros loses nothing.
  const at::Tensor norm = stacked.square().sum(1).clamp_min(1e-30);
  return {latent, -(lost / norm)};
}

at::Tensor key_before_norm(const at::Tensor& key, const Norm& k_norm, const at::Tensor& rms) {
  const at::Tensor weight =
      k_norm.weight.to(at::kFloat).view({-1, key.size(-1)});  // of all heads, or each
  const at::Tensor inverse = at::where(weight == 0, at::zeros_like(weight), weight.reciprocal());
  return key * rms.unsqueeze(-1) * inverse;
}

EncodedTokens encode_pending(const GroupView& group, const std::vector<std::int64_t>& rows,
                             const at::Tensor& positions) {
  std::vector<at::Tensor> latents, scores;
  in_chunks(rows, positions, [&](const std::vector<RowRun>& runs, const at::Tensor& own) {
    const EncodedTokens chunk = encode(group, runs, own);
    latents.push_back(chunk.latents);
    scores.push_back(chunk.scores);
  });
  return {at::cat(latents), at::cat(scores)};
}

at::Tensor pending_scores(const GroupView& group, const std::vector<std::int64_t>& rows,
                          const at::Tensor& positions) {
  std::vector<at::Tensor> scores;
  in_chunks(rows, positions, [&](const std::vector<RowRun>& runs, const at::Tensor& own) {
    scores.push_back(encode(group, runs, own).scores);
  });
  return at::cat(scores);
}

at::Tensor encode_unmerged(const GroupView& group, const std::vector<std::int64_t>& rows) {
  const Decoder& decoder = group.decoder;
  const at::Tensor indices = at::tensor(rows, at::kLong);
  const at::Tensor positions = group.store.unmerged_positions().tensor();
  std::vector<at::Tensor> columns;
  for (int index = 0; index < group.spec().num_layers; ++index) {
    const int layer = group.layer(index);
    const KeyValueStore& stored = group.store.unmerged(index);
    at::Tensor key = stored.key.rows(at::kFloat), value = stored.value.rows(at::kFloat);
    if (!stores_raw_keys(decoder.config(), layer)) {
      key = decoder.rope().unrotate(layer, key, positions.slice(0, stored.num_codes()));
    }
    if (stored.num_codes() > 0) {
      key = at::cat({stored.key_codes->rows(at::kFloat), key});
      value = at::cat({stored.value_codes->rows(at::kFloat), value});
    }
    columns.push_back(stacked_layer(decoder.layer(layer), key.index_select(0, indices),
                                    value.index_select(0, indices), {}));
  }
  return at::linear(at::cat(columns, 1), group.factors.encoder);
}

at::Tensor row_cosine(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.to(at::kFloat), right = b.to(at::kFloat);
  const at::Tensor norms = left.square().sum(1) * right.square().sum(1);
  return (left * right).sum(1) / norms.sqrt().clamp_min(1e-30);
}

at::Tensor key_rms(const at::Tensor& key, const Norm& k_norm) {
  const at::Tensor squares = key.to(at::kFloat).square();
  const bool per_head = k_norm.weight.size(0) == key.size(-1);
  const at::Tensor mean = per_head ? squares.mean(-1) : squares.mean({1, 2}).unsqueeze(1);
  return mean.add(k_norm.eps).sqrt().expand({key.size(0), key.size(1)});
}

at::Tensor rebuilt_key_rms(const LayerWeights& weights, const Reconstruction& layer,
                           const at::Tensor& latent, at::IntArrayRef shape) {
  const Linear rebuild{layer.key, weights.k_proj.bias};
  return key_rms(rebuild(latent).view(shape), weights.k_norm);
}

}  // namespace kvc
