#include "runtime/memory/prompt_forecast.h"

#include <algorithm>

#include "runtime/compression/compression.h"
#include "runtime/compression/prompt_compression.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/store/latent_store.h"

namespace kvc {
namespace {

int last_layer(const LatentGroup& group) { return group.first_layer + group.num_layers - 1; }

std::int64_t count_merged(const std::vector<bool>& merges) {
  return std::count(merges.begin(), merges.end(), true);
}

}  // namespace

PromptForecast::PromptForecast(CacheForecast& cache, std::int64_t count)
    : cache_(cache),
      plan_(cache.plan_),
      count_(count),
      num_tokens_(cache.num_tokens_ + count),
      now_(cache.bytes()),
      peak_(now_) {
  prepare_groups();
}

void PromptForecast::prepare_groups() {
  with_prompt_ = tokens_with_prompt(plan_, cache_.groups_, count_);
  std::vector<std::int64_t> counts;
  for (const GroupTokens& tokens : with_prompt_) {
    counts.push_back(due_tokens(plan_, tokens.pending, true));
  }
  if (!plan_.groups.empty() && !has_basis(plan_, LatentBasis::kWeights)) {
    principal_ = with_prompt_;
    apply_principal_step(plan_, counts, cache_.dtype_, principal_);
    return;
  }
  candidates_ = {.num_tokens = num_tokens_,
                 .plain_dtype = cache_.plain_dtype_,
                 .num_candidates = counts,
                 .tokens = with_prompt_,
                 .scores = std::vector<std::vector<float>>(counts.size())};
  for (std::size_t group = 0; group < counts.size(); ++group) {
    candidates_.tokens[group].pending -= counts[group];
    candidates_.tokens[group].unmerged += counts[group];
  }
  merged_.assign(counts.size(), 0);
  merges_any_ =
      !counts.empty() && merges_any(plan_, candidates_, cache_.dtype_, cache_.page_tokens_);
}

void PromptForecast::change(std::int64_t most, std::int64_t then) {
  peak_ = std::max(peak_, now_ + most);
  now_ += then;
  peak_ = std::max(peak_, now_);
}

std::int64_t PromptForecast::bytes_of(int group, const GroupTokens& tokens) const {
  return group_bytes(plan_, group, tokens, cache_.dtype_, cache_.page_tokens_);
}

std::int64_t PromptForecast::exact_bytes(std::int64_t tokens) const {
  const KvDtype exact = is_integer(cache_.dtype_) ? KvDtype::kFloat16 : cache_.dtype_;
  return plain_layer_bytes(plan_, tokens, exact, cache_.page_tokens_);
}

std::int64_t PromptForecast::read() {
  for (int layer = 0; layer < plan_.num_layers(); ++layer) {
    store(layer);
    for (int plain = 0; plain <= layer; ++plain) {
      code_plain(last_reader(plan_, plain) == layer ? plain : -1);
    }
    for (const CodedLayers& layers : coded_layers(plan_)) {
      if (layers.first_layer + layers.num_layers - 1 == layer) {
        code(layers);
      }
    }
    for (std::size_t pair = 0; pair < cache_.pairs_.size(); ++pair) {
      if (plan_.paired->first_layers[pair] + 1 == layer) {
        merge_pair(cache_.pairs_[pair]);
      }
    }
    for (int group = 0; group < static_cast<int>(plan_.groups.size()); ++group) {
      if (last_layer(plan_.groups[static_cast<std::size_t>(group)]) == layer) {
        set_group(group, with_prompt_[static_cast<std::size_t>(group)]);
        compress_group(group);
      }
    }
  }
  cache_.num_tokens_ = num_tokens_;
  cache_.codes_ = quantised_tokens(plan_, num_tokens_, cache_.plain_dtype_);
  cache_.coded_ = coded_tokens(plan_, num_tokens_);
  return peak_;
}

// Exact rows; of groups all at the last layer, of pairs at the second.
void PromptForecast::store(int layer) {
  const KvSource source = plan_.layers[static_cast<std::size_t>(layer)];
  if (source == KvSource::kPlain) {
    add(cache_.plain_bytes(cache_.codes_, num_tokens_) -
        cache_.plain_bytes(cache_.codes_, cache_.num_tokens_));
  } else if (source == KvSource::kCoded) {
    add(exact_bytes(num_tokens_ - cache_.coded_) - exact_bytes(cache_.num_tokens_ - cache_.coded_));
  }
}

// Codes come before the exact rows that they are made of go.
void PromptForecast::code_plain(int layer) {
  if (layer < 0 || plan_.layers[static_cast<std::size_t>(layer)] != KvSource::kPlain) {
    return;
  }
  const std::int64_t codes = quantised_tokens(plan_, num_tokens_, cache_.plain_dtype_);
  const auto with = [&](std::int64_t coded, std::int64_t exact) {
    return cache_.plain_bytes(coded, coded + exact);
  };
  const std::int64_t exact = num_tokens_ - cache_.codes_;
  change(with(codes, exact) - with(cache_.codes_, exact),
         with(codes, num_tokens_ - codes) - with(cache_.codes_, exact));
}

void PromptForecast::code(const CodedLayers& layers) {
  const std::int64_t coded = coded_tokens(plan_, num_tokens_);
  const std::int64_t kept = plan_.compression.exact_tokens();
  std::int64_t added = 0;
  for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
    const CodedBlock& block = plan_.coded[static_cast<std::size_t>(i)];
    const auto bytes = [&](std::int64_t codes) {
      return coded_block_bytes(plan_, block, codes + kept, cache_.dtype_, cache_.page_tokens_);
    };
    added += bytes(coded) - bytes(cache_.coded_);
  }
  change(added, added - layers.num_layers * (exact_bytes(num_tokens_ - cache_.coded_) -
                                             exact_bytes(num_tokens_ - coded)));
}

void PromptForecast::merge_pair(PairTokens& pair) {
  const auto bytes = [this](const PairTokens& tokens) {
    return pair_bytes(plan_, tokens, cache_.dtype_, cache_.page_tokens_);
  };
  const std::int64_t before = bytes(pair), retained = plan_.paired->most_retained(count_);
  pair.exact += count_;
  add(bytes(pair) - before);
  const std::int64_t exact = bytes(pair);
  pair.merged += count_;
  pair.retained_keys += retained;
  pair.retained_values += retained;
  const std::int64_t both = bytes(pair);
  pair.exact -= count_;
  change(both - exact, bytes(pair) - exact);
}

void PromptForecast::set_group(int group, const GroupTokens& tokens) {
  GroupTokens& own = cache_.groups_[static_cast<std::size_t>(group)];
  add(bytes_of(group, tokens) - bytes_of(group, own));
  own = tokens;
}

void PromptForecast::compress_group(int group) {
  const auto index = static_cast<std::size_t>(group);
  if (!principal_.empty()) {
    return set_group(group, principal_[index]);  // old rows go before the ones they become
  }
  if (!decides(plan_.groups[index])) {
    return;
  }
  if (!merges_any_) {
    return decide(group, 0);
  }
  candidates_.scores[index].assign(static_cast<std::size_t>(candidates_.num_candidates[index]),
                                   0.0f);
  // Which groups would merge ahead as a whole depends on the text.
  if (cache_.spread_ == MergeSpread::kEven ||
      plan_.compression.granularity == Granularity::kToken) {
    merge_ahead(group);
  }
  if (index + 1 == plan_.groups.size()) {
    const auto merges = select_merges(plan_, candidates_, cache_.dtype_, cache_.page_tokens_);
    for (int ranked = 0; ranked <= group; ++ranked) {
      decide(ranked, count_merged(merges[static_cast<std::size_t>(ranked)]));
    }
  }
}

void PromptForecast::merge_ahead(int group) {
  const auto merges = select_merges(plan_, candidates_, cache_.dtype_, cache_.page_tokens_);
  for (int ranked = 0; ranked <= group; ++ranked) {
    const auto index = static_cast<std::size_t>(ranked);
    const std::int64_t added = count_merged(merges[index]) - merged_[index];
    GroupTokens tokens = cache_.groups_[index];
    tokens.pending -= added;
    tokens.merged += added;
    set_group(ranked, tokens);
    merged_[index] += added;
  }
}

// Unmerged tokens are stored, a part of a layer's at a time, before exact ones go; and then become codes, layer after
// layer.
void PromptForecast::decide(int group, std::int64_t merged) {
  const auto index = static_cast<std::size_t>(group);
  const std::int64_t left = candidates_.num_candidates[index] - merged_[index];
  if (left == 0) {
    return;
  }
  GroupTokens tokens = cache_.groups_[index];
  const std::int64_t newly = merged - merged_[index], unmerged = left - newly;
  const std::int64_t twice = rows_decided_at_once(left);
  const bool is_exact = is_integer(cache_.dtype_) && !keeps_latents(plan_, group);
  const std::int64_t share = cache_.spread_ == MergeSpread::kEven ? twice * unmerged / left : twice;
  const int layers = plan_.groups[index].num_layers;
  const std::int64_t part =
      bytes_of(group, is_exact ? GroupTokens{.pending = share} : GroupTokens{.unmerged = share});
  const std::int64_t codes = is_exact ? bytes_of(group, {.unmerged = unmerged}) : 0;
  change(std::max(part, codes) / layers, 0);
  tokens.merged += newly;
  tokens.unmerged += unmerged;
  tokens.pending -= left;
  set_group(group, tokens);
}

}  // namespace kvc
