#include "runtime/gpu/gpu_held_rows.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "model/decoder.h"
#include "runtime/compression/reconstruction.h"

namespace kvc {
namespace {

// One layer of a group: what has been decided, and what has not.
class GroupReader {
 public:
  GroupReader(const GpuModel& model, const GpuCache& cache, int layer, std::size_t sequence)
      : model_(model),
        plan_(cache.plan()),
        layer_(layer),
        sequence_(sequence),
        spec_(plan_.groups[static_cast<std::size_t>(plan_.group_of(layer))]),
        factors_(model.groups[static_cast<std::size_t>(plan_.group_of(layer))]),
        store_(cache.group(plan_.group_of(layer))),
        index_(static_cast<std::size_t>(layer - spec_.first_layer)),
        tokens_(store_.tokens(sequence)) {}

  HeldRows read(std::int64_t pending) const {
    const HeldRows exact = first_rows(*rows().pending_key, *rows().pending_value, pending);
    if (tokens_.merged + tokens_.unmerged == 0) {
      return exact;
    }
    const std::int64_t sinks = plan_.compression.sink_tokens;
    const HeldRows decided = decided_rows(), last = {exact.key.narrow(0, sinks, pending - sinks),
                                                     exact.value.narrow(0, sinks, pending - sinks)};
    return {at::cat({exact.key.narrow(0, 0, sinks), decided.key, last.key}),
            at::cat({exact.value.narrow(0, 0, sinks), decided.value, last.value})};
  }

 private:
  const GpuGroupLayer& rows() const { return store_.layers[index_]; }
  HeldRows first_rows(const GpuRows& key, const GpuRows& value, std::int64_t count) const {
    return {key.read_heads(sequence_, 0, count, plan_.head_dim),
            value.read_heads(sequence_, 0, count, plan_.head_dim)};
  }

  // For the first `count` rows of a store: as they are spelled out, or a run from the sinks on. On the CPU
  at::Tensor positions_of(const std::optional<GpuRows>& spelled, std::int64_t count) const {
    const std::int64_t sinks = plan_.compression.sink_tokens;
    return spelled ? spelled->read(sequence_, 0, count).squeeze(1).cpu().to(at::kLong)
                   : at::arange(sinks, sinks + count, at::kLong);
  }

  // Merged and unmerged tokens follow the sinks.
  HeldRows decided_rows() const {
    const std::int64_t count = tokens_.merged + tokens_.unmerged;
    const at::TensorOptions options = at::TensorOptions(model_.dtype).device(model_.device());
    HeldRows all{at::empty({count, plan_.num_kv_heads, plan_.head_dim}, options), {}};
    all.value = at::empty_like(all.key);
    const auto put = [&](const HeldRows& part, const at::Tensor& positions) {
      const at::Tensor places = (positions - plan_.compression.sink_tokens).to(all.key.device());
      all.key.index_copy_(0, places, part.key);
      all.value.index_copy_(0, places, part.value);
    };
    const at::Tensor positions = positions_of(store_.merged_positions, tokens_.merged);
    const std::size_t parts = std::max<std::size_t>(1, rows().bases.size());
    for (std::size_t part = 0; part < parts && tokens_.merged > 0; ++part) {
      const bool is_last = part + 1 >= parts;
      const std::int64_t first = store_.first_merged(sequence_, part),
                         last = is_last ? tokens_.merged : store_.first_merged(sequence_, part + 1);
      const std::int64_t begin = rows().bases.empty() ? 0 : first;
      if (begin < last) {
        const at::Tensor own = positions.narrow(0, begin, last - begin);
        put(rebuilt_rows(model_, merged_factors(part), layer_,
                         store_.merged->read(sequence_, begin, last - begin), own),
            own);
      }
    }
    if (tokens_.unmerged > 0) {
      const at::Tensor own = positions_of(store_.unmerged_positions, tokens_.unmerged);
      put(unmerged_rows(own), own);
    }
    return all;
  }

  HeldRows unmerged_rows(const at::Tensor& positions) const {
    if (rows().unmerged_latent) {
      return rebuilt_rows(model_, factors_.layers[index_].tensors(), layer_,
                          rows().unmerged_latent->read(sequence_, 0, tokens_.unmerged), positions);
    }
    return first_rows(*rows().unmerged_key, *rows().unmerged_value, tokens_.unmerged);
  }

  // The checkpoint's, or those of the request that the cache holds.
  Reconstruction merged_factors(std::size_t part) const {
    const RankFactors& factors = factors_.merged_layers[index_];
    if (rows().bases.empty()) {
      return factors.tensors();
    }
    const GpuBasis& basis = rows().bases[part];
    Reconstruction layer{factors.from_pairs(basis.key.read(sequence_, 0, plan_.kv_dim())),
                         basis.value.read(sequence_, 0, plan_.kv_dim())};
    layer.is_principal = true;
    return layer;
  }

  const GpuModel& model_;
  const KvPlan& plan_;
  int layer_;
  std::size_t sequence_;
  const LatentGroup& spec_;
  const GpuGroupFactors& factors_;
  const GpuGroup& store_;
  std::size_t index_;
  GroupTokens tokens_;
};

}  // namespace

HeldRows held_rows(const GpuModel& model, const GpuCache& cache, int layer, std::size_t sequence,
                   std::int64_t num_tokens, StepExecutor& executor) {
  const auto exact_rows = [&](std::int64_t first, std::int64_t count) {
    return HeldRows{cache.keys(layer, sequence, first, count),
                    cache.values(layer, sequence, first, count)};
  };
  const std::int64_t codes = cache.num_codes(layer, sequence);
  if (codes == 0) {
    const std::int64_t first = cache.first_row(layer, sequence);
    return exact_rows(first, num_tokens - first);
  }
  const std::int64_t sinks = cache.plan().compression.sink_tokens;
  const HeldRows first = exact_rows(0, sinks), last = exact_rows(sinks, num_tokens - codes - sinks),
                 decoded = decoded_rows(model, cache, layer, sequence, codes, executor);
  return {at::cat({first.key, decoded.key, last.key}),
          at::cat({first.value, decoded.value, last.value})};
}

HeldRows held_group_rows(const GpuModel& model, const GpuCache& cache, int layer,
                         std::size_t sequence, std::int64_t num_tokens, std::int64_t num_counted) {
  const GroupTokens tokens = cache.group(cache.plan().group_of(layer)).tokens(sequence);
  return GroupReader(model, cache, layer, sequence)
      .read(tokens.pending - (num_counted - num_tokens));
}

HeldRows rebuilt_rows(const GpuModel& model, const Reconstruction& factors, int layer,
                      const at::Tensor& latent, const at::Tensor& positions) {
  const LayerWeights& weights = model.layers[static_cast<std::size_t>(layer)];
  const std::int64_t rank = latent.size(1), value_rank = factors.value.size(1);
  const Linear key{factors.key, key_offset(weights, factors)},
      value{factors.value, value_offset(weights, factors)};
  const auto heads = [&](const at::Tensor& rows) {
    return rows.view({rows.size(0), model.config.num_kv_heads, model.config.head_dim});
  };
  const at::Tensor rebuilt = heads(key(latent.narrow(1, 0, factors.key.size(1))));
  return {factors.is_principal ? model.rope.rotate(layer, rebuilt, positions)
                               : finish_key(weights, model.rope, layer, rebuilt, positions),
          heads(value(latent.narrow(1, rank - value_rank, value_rank)))};
}

}  // namespace kvc
