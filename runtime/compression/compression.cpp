#include "runtime/compression/compression.h"

#include <algorithm>
#include <vector>

#include "runtime/compression/coding.h"
#include "runtime/compression/key_forms.h"
#include "runtime/compression/principal_encoding.h"

namespace kvc {
namespace {

// Rows of a layer under a token policy become codes by themselves, or with the policy's own steps.
bool codes_blocks(const KvCache& cache, const KeptRows& rows) {
  return rows.store().key_codes && !(rows.has_left() && cache.policy().is_running());
}

void quantise_plain(const Decoder& decoder, int layer, KvCache& cache) {
  KeyValueStore& store = cache.plain_layer(layer);
  const CompressionSettings& settings = cache.plan().compression;
  const std::int64_t count = tokens_in_blocks(cache.plan(), store.num_exact());
  if (!store.key_codes || count == 0) {
    return;
  }
  const std::int64_t first = settings.sink_tokens + store.num_codes();
  const bool is_latent = cache.plan().own_widths.has_value();
  store.quantise(settings.sink_tokens, count, [&](const at::Tensor& key, std::int64_t offset) {
    const at::Tensor positions =
        at::arange(first + offset, first + offset + key.size(0), at::kLong);
    return is_latent ? key : key_for_codes(decoder, layer, key, positions);
  });
}

void quantise_unmerged(const Decoder& decoder, int layer, int index, LatentStore& group) {
  KeyValueStore& store = group.unmerged(index);
  const std::int64_t count = store.num_exact() / kQuantisedTokens * kQuantisedTokens;
  if (!store.key_codes || count == 0) {
    return;
  }
  const at::Tensor positions = group.unmerged_positions().tensor().slice(0, store.num_codes());
  store.quantise(0, count, [&](const at::Tensor& key, std::int64_t offset) {
    return key_for_codes(decoder, layer, key, positions.narrow(0, offset, key.size(0)));
  });
}

}  // namespace

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
      rows.quantise(plan.compression.sink_tokens, tokens_in_blocks(plan, rows.store().num_exact()),
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
