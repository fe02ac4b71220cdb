#include "runtime/memory/group_forecast.h"

#include <algorithm>
#include <utility>

#include "runtime/policies/principal_policy.h"

namespace kvc {

GroupForecast::GroupForecast(const ForecastSettings& settings, int group, const KvCache* cache)
    : LayerForecast(settings, settings.plan.groups[static_cast<std::size_t>(group)].first_layer,
                    settings.plan.groups[static_cast<std::size_t>(group)].num_layers),
      group_(group),
      spec_(settings.plan.groups[static_cast<std::size_t>(group)]) {
  if (cache != nullptr) {
    kept_ = cache->group(group).kept_tokens();
    note_forms(kept_.tokens);
    slots_ = kept_.residual_slots;
    budget_ = cache->kept_group(group);
  }
}

void GroupForecast::note_forms(const GroupTokens& tokens) {
  has_unmerged_ = has_unmerged_ || tokens.unmerged > 0;
  has_merged_ = has_merged_ || tokens.merged > 0;
}

std::int64_t GroupForecast::rows() const {
  return kept_.tokens.merged + kept_.tokens.unmerged + kept_.tokens.pending;
}

std::int64_t GroupForecast::tokens_until_due() const {
  return kvc::tokens_until_due(plan(), spec_, kept_.tokens);
}

std::int64_t GroupForecast::bytes_of(KeptGroupTokens kept) const {
  kept.residual_slots = slots_;
  return kept_group_bytes(plan(), policy(), group_, kept, settings_.dtype, settings_.page_tokens);
}

std::int64_t GroupForecast::layer_bytes(const GroupTokens& tokens) const {
  return kept_group_bytes(plan(), policy(), group_, {.tokens = tokens}, settings_.dtype,
                          settings_.page_tokens) /
         static_cast<std::int64_t>(layers_.size());
}

// A running policy goes on to drop tokens, exact ones or latents as the text has it.
bool GroupForecast::leaves_later() const { return policy().is_running() && budget_.is_laid_out; }

std::int64_t GroupForecast::bytes() const {
  const bool merges_some = !policy().is_full() && plan().compression.rule != MergeRule::kNone;
  const bool text_decides = is_compressed_ && decides(spec_) && (leaves_later() || merges_some);
  return text_decides ? most_bytes() : bytes_of(kept_);
}

// As many exact tokens as there can be, and a begun page and block of either form of the others.
std::int64_t GroupForecast::most_bytes() const {
  KeptGroupTokens kept = kept_;
  GroupTokens& tokens = kept.tokens;
  const bool leaves_later = this->leaves_later();
  if (leaves_later) {
    const std::int64_t until_block = kvc::tokens_until_due(plan(), spec_, {});
    tokens.pending = std::min(rows(), until_block);
    tokens.unmerged = std::min(tokens.unmerged, rows() - tokens.pending);
    tokens.merged = rows() - tokens.pending - tokens.unmerged;
  }
  const bool has_others = tokens.unmerged + tokens.merged > 0;
  std::int64_t codes = 0;
  if (is_integer(settings_.dtype) && tokens.unmerged > 0) {
    const std::int64_t whole = tokens.unmerged / kQuantisedTokens * kQuantisedTokens;
    tokens.unmerged = whole + kQuantisedTokens - 1;
    if (leaves_later) {  // of a layer that codes its rows apart
      kept.row_codes = whole;
      codes = quantised_value_bytes(whole, plan().kv_dim(), plan().head_dim, settings_.dtype);
    }
  }
  tokens.unmerged += (leaves_later ? has_unmerged_ : has_others) ? settings_.page_tokens - 1 : 0;
  tokens.merged += (leaves_later ? has_merged_ : has_others) ? settings_.page_tokens - 1 : 0;
  return bytes_of(kept) + codes;
}

std::int64_t GroupForecast::bytes_before_codes() const {
  KeptGroupTokens exact = kept_;
  exact.tokens.pending +=
      exact.tokens.unmerged + (exact.tokens.unmerged > 0 ? settings_.page_tokens - 1 : 0);
  exact.tokens.unmerged = 0;
  return std::max(bytes(), bytes_of(exact));
}

void GroupForecast::store(int layer, std::int64_t count) {
  if (is_last(layer)) {
    is_compressed_ = layer == kAllLayers || policy().is_full();
    append_tokens(spec_, count, kept_.tokens);
  }
}

// Merged tokens first, exact ones last.
void GroupForecast::remove(std::int64_t count, bool /*is_step*/) {
  for (std::int64_t* tokens :
       {&kept_.tokens.merged, &kept_.tokens.unmerged, &kept_.tokens.pending}) {
    const std::int64_t leaving = std::min(*tokens, count);
    *tokens -= leaving;
    count -= leaving;
  }
}

void GroupForecast::set_tokens(const GroupTokens& tokens, PassBytes& pass) {
  note_forms(tokens);
  follow(pass, [&] { kept_.tokens = tokens; });
}

void GroupForecast::set_compressed(PassBytes& pass) {
  follow(pass, [&] { is_compressed_ = true; });
}

MergeForecast::MergeForecast(const ForecastSettings& settings, std::vector<GroupForecast>& groups,
                             std::vector<GroupTokens> tokens, bool prompt_ended,
                             std::int64_t num_tokens, std::vector<std::int64_t> layer_tokens)
    : settings_(settings), groups_(groups), ahead_(groups.size()) {
  const std::vector<std::int64_t> counts = due_tokens(settings.plan, tokens, prompt_ended);
  is_due_ = std::any_of(counts.begin(), counts.end(), [](auto count) { return count > 0; });
  if (is_due_ && !has_basis(settings.plan, LatentBasis::kWeights)) {
    apply_principal_step(settings.plan, counts, settings.dtype, tokens);
    principal_ = std::move(tokens);
  } else if (is_due_) {
    candidates_ = merge_candidates(std::move(tokens), counts, num_tokens);
    candidates_.layer_tokens = std::move(layer_tokens);
    candidates_.plain_dtype = settings.plain_dtype;
    merges_any_ = merges_any(settings.plan, candidates_, settings.dtype, settings.page_tokens);
  }
}

// For each group, when the scores of so many are known.
std::vector<std::int64_t> MergeForecast::count_merges(std::size_t num_ranked) {
  for (std::size_t group = 0; group < num_ranked; ++group) {
    candidates_.scores[group].resize(static_cast<std::size_t>(candidates_.num_candidates[group]));
  }
  std::vector<std::int64_t> counts;
  for (const std::vector<bool>& merges :
       select_merges(settings_.plan, candidates_, settings_.dtype, settings_.page_tokens)) {
    counts.push_back(std::count(merges.begin(), merges.end(), true));
  }
  return counts;
}

void MergeForecast::compress_group(std::size_t group, PassBytes& pass) {
  if (!is_due_) {
    return;
  }
  if (!principal_.empty()) {
    return groups_[group].set_tokens(principal_[group], pass);  // old rows go before new ones
  }
  if (!merges_any_) {
    return decide(group, 0, pass);
  }
  const std::vector<std::int64_t> merges = count_merges(group + 1);
  // Which groups would merge ahead as a whole depends on the text.
  const bool merges_ahead = settings_.spread == MergeSpread::kEven ||
                            settings_.plan.compression.granularity == Granularity::kToken;
  for (std::size_t ranked = 0; merges_ahead && ranked <= group; ++ranked) {
    merge_ahead(ranked, merges[ranked], pass);
  }
  for (std::size_t ranked = 0; group + 1 == groups_.size() && ranked <= group; ++ranked) {
    decide(ranked, merges[ranked], pass);
  }
}

void MergeForecast::merge_ahead(std::size_t group, std::int64_t merged, PassBytes& pass) {
  GroupTokens tokens = groups_[group].tokens();
  tokens.pending -= merged - ahead_[group];
  tokens.merged += merged - ahead_[group];
  ahead_[group] = merged;
  groups_[group].set_tokens(tokens, pass);
}

// Unmerged tokens are stored, a part of a layer's at a time, before exact ones go; and then become codes, layer after
// layer.
void MergeForecast::decide(std::size_t group, std::int64_t merged, PassBytes& pass) {
  const std::int64_t left = candidates_.num_candidates[group] - ahead_[group];
  if (left == 0) {
    return;
  }
  const std::int64_t newly = merged - ahead_[group], unmerged = left - newly;
  const std::int64_t twice = rows_decided_at_once(left);
  const std::int64_t share =
      settings_.spread == MergeSpread::kEven ? twice * unmerged / left : twice;
  GroupForecast& own = groups_[group];
  const bool is_exact =
      is_integer(settings_.dtype) && !keeps_latents(settings_.plan, static_cast<int>(group));
  pass.change(is_exact ? std::max(own.layer_bytes({.pending = share}),
                                  own.layer_bytes({.unmerged = unmerged}))
                       : own.layer_bytes({.unmerged = share}),
              0);
  GroupTokens tokens = own.tokens();
  tokens.merged += newly;
  tokens.unmerged += unmerged;
  tokens.pending -= left;
  own.set_tokens(tokens, pass);
}

void MergeForecast::compress(PassBytes& pass) {
  const std::vector<std::int64_t> merges =
      is_due_ && principal_.empty() ? count_merges(groups_.size()) : std::vector<std::int64_t>();
  for (std::size_t group = 0; is_due_ && group < groups_.size(); ++group) {
    merges.empty() ? groups_[group].set_tokens(principal_[group], pass)
                   : decide(group, merges[group], pass);
  }
  std::int64_t before_codes = 0;
  for (GroupForecast& group : groups_) {
    group.set_compressed(pass);
    before_codes += group.bytes_before_codes() - group.bytes();
  }
  if (is_due_ && is_integer(settings_.dtype) && !settings_.policy.is_full()) {
    pass.change(before_codes, 0);
  }
}

}  // namespace kvc
