#include "runtime/compression/prompt_compression.h"

#include <algorithm>

#include "runtime/compression/compression.h"
#include "runtime/compression/principal_encoding.h"

namespace kvc {
namespace {

bool contains(const std::vector<int>& layers, int layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

}  // namespace

int last_reader(const KvPlan& plan, int layer) {
  int last = layer;
  for (const FusedLayer& fused : plan.fused) {
    if (contains(fused.key_sources, layer) || contains(fused.value_sources, layer)) {
      last = std::max(last, fused.layer);
    }
  }
  return last;
}

PromptCompression::PromptCompression(const CompressionContext& context, std::int64_t count,
                                     KvCache& cache)
    : context_(context), num_tokens_(cache.num_tokens() + count), cache_(cache) {
  for (int layer = 0; layer < plan().num_layers(); ++layer) {
    const bool is_plain = plan().layers[static_cast<std::size_t>(layer)] == KvSource::kPlain;
    last_readers_.push_back(!is_plain                  ? -1
                            : cache.policy().is_full() ? last_reader(plan(), layer)
                                                       : cache.sharing(layer).layers.back());
  }
  if (plan().groups.empty() || !cache.policy().is_full()) {
    return;
  }
  const std::vector<GroupTokens> tokens = tokens_with_prompt(plan(), cache.tokens(), count);
  counts_ = due_tokens(plan(), tokens, true);
  if (has_basis(plan(), LatentBasis::kWeights)) {
    merges_.emplace(context, tokens, counts_, num_tokens_, cache);
  } else {
    step_ = principal_step(plan(), tokens, counts_, context.dtype);
  }
}

void PromptCompression::code_layers_read_by(int layer) {
  for (int plain = 0; plain <= layer; ++plain) {
    if (last_readers_[static_cast<std::size_t>(plain)] == layer) {
      quantise_layer(context_.decoder, plain, cache_);
    }
  }
}

void PromptCompression::group_read(int group) {
  const bool is_last = group == static_cast<int>(plan().groups.size()) - 1;
  if (waits_for_all()) {
    return;
  }
  if (!merges_) {
    compress_principal_group(context_.decoder, context_.factors.latent, group,
                             counts_[static_cast<std::size_t>(group)], step_, cache_);
  } else if (!merges_->any()) {
    merges_->rank(group);
    decide(group);
  } else {
    merges_->rank_ahead(group);
    for (int ranked = 0; is_last && ranked <= group; ++ranked) {
      decide(ranked);
    }
  }
}

void PromptCompression::decide(int group) {
  merges_->decide(group);
  quantise_group(group);
}

void PromptCompression::quantise_group(int group) {
  const LatentGroup& spec = plan().groups[static_cast<std::size_t>(group)];
  for (int layer = spec.first_layer; layer < spec.first_layer + spec.num_layers; ++layer) {
    quantise_layer(context_.decoder, layer, cache_);
  }
}

void PromptCompression::all_read() {
  if (plan().groups.empty() || !waits_for_all()) {
    return;
  }
  compress(context_, due_tokens(plan(), cache_.tokens(), true), num_tokens_, cache_);
  for (int group = 0; group < static_cast<int>(plan().groups.size()); ++group) {
    quantise_group(group);
  }
}

}  // namespace kvc
