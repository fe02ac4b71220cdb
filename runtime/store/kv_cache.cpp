#include "runtime/store/kv_cache.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/token_policy.h"

namespace kvc {

std::int64_t KvBytes::total() const {
  std::int64_t total = 0;
  for (const KvSegmentBytes& segment : kKvSegments) {
    total += this->*segment.bytes;
  }
  return total;
}

KvBytes& KvBytes::operator+=(const KvBytes& other) {
  for (const KvSegmentBytes& segment : kKvSegments) {
    this->*segment.bytes += other.*segment.bytes;
  }
  return *this;
}

KvCache::KvCache(std::shared_ptr<const KvPlan> shared_plan, const StoreOptions& options,
                 std::shared_ptr<const TokenPolicy> policy)
    : plan_(std::move(shared_plan)), policy_(std::move(policy)) {
  const KvPlan& plan = *plan_;
  if (!policy_->is_full()) {
    sharing_ = sharing_layers(plan);
  }
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (plan.layers[static_cast<std::size_t>(layer)] != KvSource::kPlain) {
      plain_index_.push_back(-1);
      continue;
    }
    plain_index_.push_back(static_cast<int>(plain_.size() + kept_.size() + pruned_.size()));
    if (policy_->is_full()) {
      plain_.push_back(plain_store(plan, options));
    } else if (policy_->prunes_channels()) {
      pruned_.push_back({.store = {plan, options, kept_channels(*policy_, plan.head_dim)}});
    } else {
      kept_.push_back({.rows = {plan, options, kept_columns(*policy_, sharing(layer), layer)}});
    }
  }
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    groups_.emplace_back(plan, group, options, group_columns(*policy_));
  }
  kept_groups_.resize(groups_.size());
  for (const CodedLayers& layers : coded_layers(plan)) {
    coded_.emplace_back(plan, layers, options, *policy_);
  }
  kept_coded_.resize(coded_.size());
  if (plan.paired) {
    pairs_.assign(plan.paired->first_layers.size(), PairStore(plan, options));
  }
}

void KvCache::truncate(std::int64_t count) {
  KVC_CHECK(policy_->is_full() && coded_.empty() && pairs_.empty(),
            "KV cache: tokens that left their order cannot be taken back");
  for (KeyValueStore& layer : plain_) {
    KVC_CHECK(!layer.key_codes && !layer.positions, "KV cache: codes cannot be taken back");
    layer.key.truncate(count);
    layer.value.truncate(count);
  }
  for (LatentStore& group : groups_) {
    group.truncate(count);
  }
  ids_.resize(static_cast<std::size_t>(count));
  num_tokens_ = count;
}

const KeyValueStore& KvCache::plain_layer(int layer) const {
  const int index = plain_index_[static_cast<std::size_t>(layer)];
  KVC_CHECK(index >= 0 && policy_->is_full(),
            "KV cache: layer {} stores no keys and values of its own", layer);
  return plain_[static_cast<std::size_t>(index)];
}

const KeptLayer& KvCache::kept_layer(int layer) const {
  const int index = plain_index_[static_cast<std::size_t>(layer)];
  KVC_CHECK(index >= 0 && !kept_.empty(), "KV cache: layer {} is under no token policy", layer);
  return kept_[static_cast<std::size_t>(index)];
}

const SharingLayers& KvCache::sharing(int layer) const {
  const auto found =
      std::find_if(sharing_.begin(), sharing_.end(), [layer](const SharingLayers& set) {
        return std::binary_search(set.layers.begin(), set.layers.end(), layer);
      });
  KVC_CHECK(found != sharing_.end(), "KV cache: layer {} keeps no plain layer's tokens", layer);
  return *found;
}

const PrunedLayer& KvCache::pruned_layer(int layer) const {
  const int index = plain_index_[static_cast<std::size_t>(layer)];
  KVC_CHECK(index >= 0 && !pruned_.empty(), "KV cache: layer {} keeps all channels", layer);
  return pruned_[static_cast<std::size_t>(index)];
}

const CodedStore& KvCache::coded(int layer) const {
  const auto after = std::find_if(coded_.begin(), coded_.end(), [layer](const CodedStore& store) {
    return layer < store.layers.first_layer + store.layers.num_layers;
  });
  KVC_CHECK(after != coded_.end() && layer >= after->layers.first_layer,
            "KV cache: layer {} is not coded", layer);
  return *after;
}

const KeptGroup& KvCache::kept_coded(int layer) const {
  return kept_coded_[static_cast<std::size_t>(&coded(layer) - coded_.data())];
}

const PairStore& KvCache::pair(int layer) const {
  KVC_CHECK(plan_->layers[static_cast<std::size_t>(layer)] == KvSource::kPaired,
            "KV cache: layer {} is not paired", layer);
  const std::vector<int>& first = plan_->paired->first_layers;
  const auto after = std::upper_bound(first.begin(), first.end(), layer);
  return pairs_[static_cast<std::size_t>(after - first.begin() - 1)];
}

void KvCache::hold_positions(const StoreOptions& options) {
  KVC_CHECK(!options.codes, "KV cache of integers: layers hold all tokens; use a 16-bit type");
  for (KeyValueStore& layer : plain_) {
    layer.positions.emplace(options.pool, RowFormat{.shape = {}, .dtype = at::kInt});
  }
}

std::vector<GroupTokens> KvCache::tokens() const {
  std::vector<GroupTokens> tokens;
  for (const LatentStore& group : groups_) {
    tokens.push_back(group.tokens());
  }
  return tokens;
}

std::vector<PairTokens> KvCache::pair_tokens() const {
  std::vector<PairTokens> tokens;
  for (const PairStore& pair : pairs_) {
    tokens.push_back(pair.tokens());
  }
  return tokens;
}

bool KvCache::shares_tail() const {
  const auto of_group = [](const LatentStore& group) {
    const bool has_pending = group.pending(0).key.num_rows() > 0;
    return has_pending ? group.pending(0).key.shares_tail()
                       : group.merged().shares_tail() ||
                             (group.keeps_latents() && group.unmerged_latent(0).shares_tail());
  };
  const auto of_layer = [](const KeyValueStore& layer) { return layer.key.shares_tail(); };
  return std::any_of(plain_.begin(), plain_.end(), of_layer) ||
         std::any_of(groups_.begin(), groups_.end(), of_group) ||
         std::any_of(coded_.begin(), coded_.end(),
                     [&](const CodedStore& layers) { return of_layer(layers.exact.front()); }) ||
         std::any_of(pairs_.begin(), pairs_.end(),
                     [&](const PairStore& pair) { return of_layer(pair.exact.front()); });
}

KvBytes KvCache::bytes() const {
  KvBytes bytes;
  for (const KeyValueStore& layer : plain_) {
    bytes.plain += layer.bytes();
  }
  for (const KeptLayer& layer : kept_) {
    bytes.kept += layer.rows.bytes();
  }
  for (const PrunedLayer& layer : pruned_) {
    bytes.kept += layer.store.bytes();
  }
  for (const LatentStore& group : groups_) {
    const std::vector<std::int64_t> segments = group.segment_bytes();
    bytes.merged += segments[0];
    bytes.unmerged += segments[1];
    bytes.pending += segments[2];
    bytes.chunks += segments[3];
    bytes.kept += group.column_bytes();
    bytes.expanded += group.expansion() ? group.expansion()->bytes() : 0;
  }
  for (const CodedStore& layers : coded_) {
    bytes.coded += layers.code_bytes();
    bytes.pending += layers.exact_bytes();
    bytes.kept += layers.column_bytes();
  }
  for (const PairStore& pair : pairs_) {
    bytes.merged += pair.merged_bytes();
    bytes.unmerged += pair.retained_bytes();
    bytes.pending += pair.exact_bytes();
  }
  return bytes;
}

}  // namespace kvc
