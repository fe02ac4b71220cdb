#include "runtime/memory/memory_forecast.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/compression/compression.h"
#include "runtime/compression/expansion.h"
#include "runtime/memory/prompt_forecast.h"
#include "runtime/policies/merge_selection.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/store/coded_store.h"
#include "runtime/store/latent_store.h"

namespace kvc {
namespace {

std::int64_t count_plain(const KvPlan& plan) { return plan.num_layers_from(KvSource::kPlain); }

}  // namespace

CacheForecast::CacheForecast(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens)
    : CacheForecast(plan, 0, std::vector<GroupTokens>(plan.groups.size()), dtype, page_tokens,
                    MergeSpread::kEven) {}

CacheForecast::CacheForecast(const KvPlan& plan, std::int64_t num_tokens,
                             std::vector<GroupTokens> groups, KvDtype dtype,
                             std::int64_t page_tokens, MergeSpread spread)
    : plan_(plan),
      dtype_(dtype),
      plain_dtype_(dtype),
      spread_(spread),
      page_tokens_(page_tokens),
      num_tokens_(num_tokens),
      codes_(quantised_tokens(plan, num_tokens, dtype)),
      coded_(coded_tokens(plan, num_tokens)),
      groups_(std::move(groups)),
      pairs_(plan.paired ? plan.paired->first_layers.size() : 0) {}

void CacheForecast::set_plain_dtype(KvDtype dtype) {
  plain_dtype_ = dtype;
  codes_ = quantised_tokens(plan_, num_tokens_, dtype);
}

void CacheForecast::append(std::int64_t count) {
  num_tokens_ += count;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    (decides(plan_.groups[i]) ? groups_[i].pending : groups_[i].unmerged) += count;
  }
  for (PairTokens& pair : pairs_) {
    pair.exact += count;
  }
}

std::int64_t CacheForecast::undecided() const {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (decides(plan_.groups[i])) {
      return std::max<std::int64_t>(0, groups_[i].pending - plan_.compression.sink_tokens);
    }
  }
  return 0;
}

std::int64_t CacheForecast::plain_bytes(std::int64_t codes, std::int64_t num_tokens) const {
  const std::int64_t kept = plan_.compression.exact_tokens();
  const auto layer = [this](std::int64_t tokens, KvDtype dtype) {
    return plain_layer_bytes(plan_, tokens, dtype, page_tokens_);
  };
  if (codes == 0) {
    return layer(num_tokens, is_integer(plain_dtype_) ? KvDtype::kFloat16 : plain_dtype_);
  }
  return layer(codes + kept, plain_dtype_) - layer(kept, KvDtype::kFloat16) +
         layer(num_tokens - codes, KvDtype::kFloat16);
}

// Of all coded layers, with coded_ of their tokens as codes.
std::int64_t CacheForecast::coded_bytes() const {
  const std::int64_t kept = plan_.compression.exact_tokens();
  std::int64_t bytes =
      plan_.num_layers_from(KvSource::kCoded) *
      plain_layer_bytes(plan_, num_tokens_ - coded_,
                        is_integer(dtype_) ? KvDtype::kFloat16 : dtype_, page_tokens_);
  for (const CodedBlock& block : plan_.coded) {
    bytes += coded_block_bytes(plan_, block, coded_ + kept, dtype_, page_tokens_) -
             coded_block_bytes(plan_, block, kept, dtype_, page_tokens_);
  }
  return bytes;
}

std::int64_t CacheForecast::bytes() const {
  if (kept_) {
    return kept_->bytes();
  }
  std::int64_t total = count_plain(plan_) * plain_bytes(codes_, num_tokens_) + coded_bytes();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    total += group_bytes(plan_, static_cast<int>(i), groups_[i], dtype_, page_tokens_);
  }
  for (const PairTokens& pair : pairs_) {
    total += pair_bytes(plan_, pair, dtype_, page_tokens_);
  }
  return total;
}

std::int64_t CacheForecast::expansion_bytes() const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    total += kvc::expansion_bytes(plan_, static_cast<int>(i), groups_[i], dtype_, page_tokens_);
  }
  return total;
}

// Group after group, layer after layer, part after part: unmerged tokens are stored before exact ones go.
std::int64_t CacheForecast::compress(std::int64_t count) {
  std::int64_t now = bytes(), peak = now;
  if (count <= 0) {
    return peak;
  }
  if (!plan_.groups.empty() && !has_basis(plan_, LatentBasis::kWeights)) {
    apply_principal_step(plan_, std::vector<std::int64_t>(groups_.size(), count), dtype_,
                         groups_);  // a group's old rows go before its new ones
    return std::max(peak, bytes());
  }
  MergeCandidates candidates{.num_tokens = num_tokens_,
                             .plain_dtype = plain_dtype_,
                             .num_candidates = std::vector<std::int64_t>(groups_.size(), count),
                             .tokens = groups_,
                             .scores = {}};
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    candidates.scores.emplace_back();
    if (decides(plan_.groups[i])) {
      candidates.scores.back().assign(static_cast<std::size_t>(count), 0.0f);
      candidates.tokens[i].pending -= count;
      candidates.tokens[i].unmerged += count;
    }
  }
  const auto merges = select_merges(plan_, candidates, dtype_, page_tokens_);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (!decides(plan_.groups[i])) {
      continue;
    }
    const auto of_group = [&](const GroupTokens& tokens) {
      return group_bytes(plan_, static_cast<int>(i), tokens, dtype_, page_tokens_);
    };
    const std::int64_t merged = std::count(merges[i].begin(), merges[i].end(), true);
    const std::int64_t before = of_group(groups_[i]);
    const std::int64_t twice = rows_decided_at_once(count);
    const std::int64_t unmerged =
        spread_ == MergeSpread::kEven ? twice * (count - merged) / count : twice;
    peak = std::max(peak, now + of_group({.unmerged = unmerged}) / plan_.groups[i].num_layers);
    groups_[i].merged += merged;
    groups_[i].unmerged += count - merged;
    groups_[i].pending -= count;
    now += of_group(groups_[i]) - before;
  }
  return peak;
}

// Layer after layer, likewise.
std::int64_t CacheForecast::quantise() {
  const std::int64_t before = bytes(), codes = quantised_tokens(plan_, num_tokens_, plain_dtype_);
  if (codes == codes_ || count_plain(plan_) == 0) {
    return before;
  }
  codes_ = codes;
  const std::int64_t kept = plan_.compression.exact_tokens();
  const std::int64_t of_layer = plain_layer_bytes(plan_, codes + kept, plain_dtype_, page_tokens_) -
                                plain_layer_bytes(plan_, kept, KvDtype::kFloat16, page_tokens_);
  return before + of_layer;
}

// Coded layers, likewise.
std::int64_t CacheForecast::code() {
  const std::int64_t before = bytes(), codes = coded_tokens(plan_, num_tokens_);
  const std::int64_t kept = plan_.compression.exact_tokens();
  std::int64_t most = 0;
  for (const CodedLayers& layers : coded_layers(plan_)) {
    std::int64_t added = 0;
    for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
      const CodedBlock& block = plan_.coded[static_cast<std::size_t>(i)];
      added += coded_block_bytes(plan_, block, codes + kept, dtype_, page_tokens_) -
               coded_block_bytes(plan_, block, coded_ + kept, dtype_, page_tokens_);
    }
    most = std::max(most, added);
  }
  coded_ = codes;
  return before + most;
}

std::int64_t CacheForecast::read(std::int64_t count) {
  if (kept_) {
    num_tokens_ += count;
    return kept_->read(count, num_tokens_);
  }
  return PromptForecast(*this, count).read();
}

std::int64_t CacheForecast::extend(std::int64_t count) {
  if (kept_) {
    num_tokens_ += count;
    return kept_->extend(count);
  }
  std::int64_t peak = bytes();
  const CompressionSettings& policy = plan_.compression;
  const std::int64_t block = generated_block(plan_);
  for (std::int64_t done = 0; done < count;) {
    std::int64_t step = std::min(
        count - done, block == std::numeric_limits<std::int64_t>::max()
                          ? policy.block_tokens
                          : std::max<std::int64_t>(1, policy.window_tokens + block - undecided()));
    if (!plan_.coded.empty()) {
      step = std::min(step, policy.exact_tokens() + kQuantisedTokens - (num_tokens_ - coded_));
    }
    append(step);
    done += step;
    const bool full = undecided() - policy.window_tokens >= block;
    peak = std::max(peak, compress(full ? block : 0));
    peak = std::max(peak, quantise());
    peak = std::max(peak, code());
  }
  return peak;
}

}  // namespace kvc
