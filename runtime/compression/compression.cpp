#include "runtime/compression/compression.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/compression/coding.h"
#include "runtime/compression/key_forms.h"
#include "runtime/compression/principal_encoding.h"
#include "runtime/policies/principal_policy.h"

namespace kvc {
namespace {

std::int64_t whole_blocks(std::int64_t tokens) {
  return std::max<std::int64_t>(0, tokens) / kQuantisedTokens * kQuantisedTokens;
}

// Rows of a layer under a token policy become codes by themselves, or with the policy's own steps.
bool codes_blocks(const KvCache& cache, const KeptRows& rows) {
  return rows.store().key_codes && !(rows.has_left() && cache.policy().is_running());
}

// Of the layer whose next codes come first; layers may keep different numbers of rows.
std::optional<std::int64_t> most_exact_rows(const KvCache& cache) {
  std::optional<std::int64_t> most;
  for (const KeptLayer& layer : cache.all_kept()) {
    if (codes_blocks(cache, layer.rows)) {
      most = std::max(most.value_or(0), layer.rows.store().num_exact());
    }
  }
  for (const CodedStore& layers : cache.all_coded()) {
    most = std::max(most.value_or(0), layers.num_exact());
  }
  return most;
}

// Exact tokens of a layer that makes codes of those that leave the window, of that whose next codes come first.
std::optional<std::int64_t> exact_before_codes(const KvCache& cache) {
  if (!cache.all_coded().empty() || !cache.all_kept().empty()) {
    return most_exact_rows(cache);
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
  const CompressionSettings& policy = cache.plan().compression;
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

std::int64_t due_tokens(const KvPlan& plan, std::int64_t pending, bool prompt_ended) {
  const std::int64_t block = generated_block(plan);
  const std::int64_t left = std::max<std::int64_t>(
      0, pending - plan.compression.sink_tokens - plan.compression.window_tokens);
  return prompt_ended ? left : left >= block ? block : 0;
}

std::vector<std::int64_t> due_tokens(const KvPlan& plan, const std::vector<GroupTokens>& tokens,
                                     bool prompt_ended) {
  std::vector<std::int64_t> due;
  for (const GroupTokens& group : tokens) {
    due.push_back(due_tokens(plan, group.pending, prompt_ended));
  }
  return due;
}

std::int64_t tokens_until_block(const KvCache& cache) {
  const CompressionSettings& policy = cache.plan().compression;
  const std::int64_t kept = policy.exact_tokens();
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t fewest = cache.policy().is_running() ? 1 : kNever;
  const std::int64_t block = generated_block(cache.plan());
  const std::vector<GroupTokens> tokens = cache.tokens();
  for (std::size_t group = 0; group < tokens.size() && block != kNever; ++group) {
    if (decides(cache.plan().groups[group])) {
      fewest = std::min(fewest, kept + block - tokens[group].pending);
    }
  }
  if (const std::optional<std::int64_t> exact = exact_before_codes(cache)) {
    fewest = std::min(fewest, kept + kQuantisedTokens - *exact);
  }
  return fewest;
}

void compress(const CompressionContext& context, const std::vector<std::int64_t>& counts,
              std::int64_t num_tokens, KvCache& cache) {
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count == 0; })) {
    return;
  }
  if (!has_basis(cache.plan(), LatentBasis::kWeights)) {
    compress_principal(context.decoder, context.factors.latent, context.dtype, counts, cache);
    return;
  }
  PendingMerges merges(context, cache.tokens(), counts, num_tokens, cache);
  const auto num_groups = static_cast<int>(counts.size());
  for (int group = 0; group < num_groups; ++group) {
    merges.rank(group);
  }
  for (int group = 0; group < num_groups; ++group) {
    merges.decide(group);
  }
}

void quantise_layer(const Decoder& decoder, int layer, KvCache& cache) {
  const KvPlan& plan = cache.plan();
  const KvSource source = plan.layers[static_cast<std::size_t>(layer)];
  const int group = plan.group_of(layer);
  if (cache.policy().prunes_channels()) {
    return;  // never
  }
  if (source == KvSource::kPlain && !cache.policy().is_full()) {
    KeptRows& rows = cache.kept_layer(layer).rows;
    if (codes_blocks(cache, rows)) {
      rows.quantise(plan.compression.sink_tokens, plan.compression.window_tokens,
                    [&](const at::Tensor& key, const at::Tensor& positions) {
                      return key_for_codes(decoder, layer, key, positions);
                    });
    }
  } else if (source == KvSource::kPlain) {
    quantise_plain(decoder, layer, cache);
  } else if (source == KvSource::kLatent && !cache.group(group).keeps_latents()) {
    const int index = layer - plan.groups[static_cast<std::size_t>(group)].first_layer;
    quantise_unmerged(decoder, layer, index, cache.group(group));
  }
}

void quantise(const Decoder& decoder, const CodedFactors& factors, KvCache& cache) {
  for (int layer = 0; layer < cache.plan().num_layers(); ++layer) {
    quantise_layer(decoder, layer, cache);
  }
  for (CodedStore& layers : cache.all_coded()) {
    code_tokens(decoder, cache.plan(), factors, layers);
  }
}

}  // namespace kvc
