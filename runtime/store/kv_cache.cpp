#include "runtime/store/kv_cache.h"

#include <utility>

#include "core/error.h"

namespace kvc {

KvCache::KvCache(std::shared_ptr<const KvPlan> shared_plan, const StoreOptions& options)
    : plan_(std::move(shared_plan)) {
  const KvPlan& plan = *plan_;
  for (const KvSource source : plan.layers) {
    if (source != KvSource::kPlain) {
      plain_index_.push_back(-1);
      continue;
    }
    plain_index_.push_back(static_cast<int>(plain_.size()));
    plain_.push_back(plain_store(plan, options));
  }
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    groups_.emplace_back(plan, group, options);
  }
}

KeyValueStore& KvCache::plain_layer(int layer) {
  return const_cast<KeyValueStore&>(std::as_const(*this).plain_layer(layer));
}

const KeyValueStore& KvCache::plain_layer(int layer) const {
  const int index = plain_index_[static_cast<std::size_t>(layer)];
  KVC_CHECK(index >= 0, "KV cache: layer {} stores no keys and values of its own", layer);
  return plain_[static_cast<std::size_t>(index)];
}

std::vector<GroupTokens> KvCache::tokens() const {
  std::vector<GroupTokens> tokens;
  for (const LatentStore& group : groups_) {
    tokens.push_back(group.tokens());
  }
  return tokens;
}

KvBytes KvCache::bytes() const {
  KvBytes bytes;
  for (const KeyValueStore& layer : plain_) {
    bytes.plain += layer.bytes();
  }
  for (const LatentStore& group : groups_) {
    const std::vector<std::int64_t> segments = group.segment_bytes();
    bytes.merged += segments[0];
    bytes.unmerged += segments[1];
    bytes.pending += segments[2];
    bytes.expanded += group.expansion() ? group.expansion()->bytes() : 0;
  }
  return bytes;
}

}  // namespace kvc
