#include "runtime/compression/compression.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/attention/plain_attention.h"
#include "runtime/compression/coding.h"
#include "runtime/compression/latent_encoding.h"
#include "runtime/compression/principal_encoding.h"
#include "runtime/policies/merge_selection.h"
#include "runtime/policies/principal_policy.h"

namespace kvc {
namespace {

// All deciding groups decide the same tokens; nullptr if there are none.
const LatentStore* deciding_store(const KvCache& cache) {
  const auto& groups = cache.plan().groups;
  const auto found = std::find_if(groups.begin(), groups.end(), decides);
  return found == groups.end() ? nullptr : &cache.group(static_cast<int>(found - groups.begin()));
}

at::Tensor as_tensor(const std::vector<bool>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kBool);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<bool>());
  return tensor;
}

MergeCandidates candidates_of(const KvCache& cache, const std::vector<EncodedTokens>& encoded,
                              std::int64_t count) {
  MergeCandidates candidates{.num_tokens = cache.num_tokens(),
                             .num_candidates = count,
                             .tokens = cache.tokens(),
                             .scores = {}};
  for (std::size_t group = 0; group < encoded.size(); ++group) {
    candidates.scores.emplace_back();
    if (decides(cache.plan().groups[group])) {
      candidates.tokens[group].pending -= count;
      candidates.tokens[group].unmerged += count;
    }
    if (encoded[group].scores.defined()) {
      const at::Tensor scores = encoded[group].scores.contiguous();
      const float* values = scores.const_data_ptr<float>();
      candidates.scores.back().assign(values, values + count);
    }
  }
  return candidates;
}

std::int64_t whole_blocks(std::int64_t tokens) {
  return std::max<std::int64_t>(0, tokens) / kQuantisedTokens * kQuantisedTokens;
}

// Of the layer whose next codes come first; layers may keep different numbers of rows.
std::optional<std::int64_t> most_exact_rows(const std::vector<KeptLayer>& layers) {
  std::optional<std::int64_t> most;
  for (const KeptLayer& layer : layers) {
    if (layer.rows.store().key_codes) {
      most = std::max(most.value_or(0), layer.rows.store().num_exact());
    }
  }
  return most;
}

// Exact tokens of a layer that makes codes of those that leave the window; all such layers have as many.
std::optional<std::int64_t> exact_before_codes(const KvCache& cache) {
  if (!cache.all_coded().empty()) {
    return cache.all_coded().front().num_exact();
  }
  if (!cache.all_kept().empty()) {
    return most_exact_rows(cache.all_kept());
  }
  if (cache.policy().prunes_channels()) {
    return std::nullopt;
  }
  for (int layer = 0; layer < cache.plan().num_layers(); ++layer) {
    if (cache.plan().layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
      const KeyValueStore& store = cache.plain_layer(layer);
      return store.key_codes ? std::optional(store.num_exact()) : std::nullopt;
    }
  }
  return std::nullopt;
}

void quantise_plain(const Decoder& decoder, int layer, KvCache& cache) {
  KeyValueStore& store = cache.plain_layer(layer);
  const MergePolicy& policy = cache.plan().policy;
  const std::int64_t count =
      whole_blocks(store.num_exact() - policy.sink_tokens - policy.window_tokens);
  if (!store.key_codes || count == 0) {
    return;
  }
  const std::int64_t first = policy.sink_tokens + store.num_codes();
  const bool is_latent = cache.plan().own_widths.has_value();
  store.quantise(policy.sink_tokens, count, [&](const at::Tensor& key, std::int64_t offset) {
    const at::Tensor positions =
        at::arange(first + offset, first + offset + key.size(0), at::kLong);
    return is_latent ? key : key_for_codes(decoder, layer, key, positions);
  });
}

void quantise_unmerged(const Decoder& decoder, int layer, int index, LatentStore& group) {
  KeyValueStore& store = group.unmerged(index);
  const std::int64_t count = whole_blocks(store.num_exact());
  if (!store.key_codes || count == 0) {
    return;
  }
  const at::Tensor positions = group.unmerged_positions().tensor().slice(0, store.num_codes());
  store.quantise(0, count, [&](const at::Tensor& key, std::int64_t offset) {
    return key_for_codes(decoder, layer, key, positions.narrow(0, offset, key.size(0)));
  });
}

}  // namespace

bool decides(const LatentGroup& group) { return !group.replaces_projections(); }

std::int64_t undecided_tokens(const KvCache& cache) {
  const LatentStore* store = deciding_store(cache);
  const std::int64_t sinks = cache.plan().policy.sink_tokens;
  return store == nullptr ? 0 : std::max<std::int64_t>(0, store->tokens().pending - sinks);
}

std::int64_t tokens_until_block(const KvCache& cache) {
  if (cache.policy().is_running()) {
    return 1;
  }
  const MergePolicy& policy = cache.plan().policy;
  const std::int64_t kept = policy.sink_tokens + policy.window_tokens;
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t block = generated_block(cache.plan());
  if (const LatentStore* store = deciding_store(cache); store != nullptr && block < fewest) {
    fewest = kept + block - store->tokens().pending;
  }
  if (const std::optional<std::int64_t> exact = exact_before_codes(cache)) {
    fewest = std::min(fewest, kept + kQuantisedTokens - *exact);
  }
  return fewest;
}

void compress(const Decoder& decoder, const LatentFactors& factors, KvDtype dtype,
              std::int64_t page_tokens, std::int64_t count, KvCache& cache) {
  const LatentStore* first_store = deciding_store(cache);
  if (first_store == nullptr || count == 0) {
    return;
  }
  const KvPlan& plan = cache.plan();
  if (!has_basis(plan, LatentBasis::kWeights)) {
    compress_principal(decoder, factors, dtype, count, cache);
    return;
  }
  const std::int64_t first =
      plan.policy.sink_tokens + first_store->tokens().merged + first_store->tokens().unmerged;
  const at::Tensor positions = at::arange(first, first + count, at::kLong);
  std::vector<EncodedTokens> encoded(plan.groups.size());
  for (std::size_t group = 0; group < encoded.size(); ++group) {
    if (decides(plan.groups[group]) && plan.policy.rule != MergeRule::kNone) {
      encoded[group] = encode_pending(decoder, plan, static_cast<int>(group), factors.groups[group],
                                      cache.group(static_cast<int>(group)), positions);
    }
  }
  const auto merges = select_merges(plan, candidates_of(cache, encoded, count), dtype, page_tokens);
  for (std::size_t group = 0; group < encoded.size(); ++group) {
    if (!decides(plan.groups[group])) {
      continue;
    }
    const at::Tensor merge = as_tensor(merges[group]);
    const at::Tensor latents =
        encoded[group].latents.defined()
            ? encoded[group].latents.index_select(0, merge.nonzero().squeeze(1))
            : at::Tensor();
    cache.group(static_cast<int>(group)).decide(merge, positions, latents);
  }
}

void quantise(const Decoder& decoder, const CodedFactors& factors, KvCache& cache) {
  const KvPlan& plan = cache.plan();
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    const KvSource source = plan.layers[static_cast<std::size_t>(layer)];
    const int group = plan.group_of(layer);
    if (cache.policy().is_running() || cache.policy().prunes_channels()) {
      continue;  // codes come with the policy's own steps, or never
    }
    if (source == KvSource::kPlain && !cache.policy().is_full()) {
      cache.kept_layer(layer).rows.quantise(plan.policy.sink_tokens, plan.policy.window_tokens);
    } else if (source == KvSource::kPlain) {
      quantise_plain(decoder, layer, cache);
    } else if (source == KvSource::kLatent && !cache.group(group).keeps_latents()) {
      const int index = layer - plan.groups[static_cast<std::size_t>(group)].first_layer;
      quantise_unmerged(decoder, layer, index, cache.group(group));
    }
  }
  for (CodedStore& layers : cache.all_coded()) {
    code_tokens(decoder, plan, factors, layers);
  }
}

}  // namespace kvc
