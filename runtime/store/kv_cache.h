// The KV cache of one sequence: per plain layer a store of keys and values, per latent group a
// store of latents, per coded block one of codes, per pair one of shared directions.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "core/token_policy.h"
#include "runtime/store/coded_store.h"
#include "runtime/store/kept_rows.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/latent_store.h"
#include "runtime/store/pair_store.h"
#include "runtime/store/pruned_store.h"
#include "runtime/store/token_counts.h"

namespace kvc {

// Bytes of blocks by content.
struct KvBytes {
  std::int64_t plain = 0;   // layers that store their own keys and values
  std::int64_t merged = 0;  // latent groups: a latent for the whole group; pairs: directions, norms
  std::int64_t unmerged = 0;  // compressed without merging; pairs: retained vectors
  std::int64_t coded = 0;     // codes of coded layers
  std::int64_t pending = 0;   // exact tokens of latent groups, coded and paired layers
  std::int64_t kept = 0;      // layers under a token policy
  std::int64_t chunks = 0;    // landmarks and exact chunks of selective reconstruction
  std::int64_t expanded = 0;  // rebuilt beside the latents, if a memory budget allows

  std::int64_t total() const;
  KvBytes& operator+=(const KvBytes& other);
};
// As reports name them, in their order.
struct KvSegmentBytes {
  const char* name;
  std::int64_t KvBytes::*bytes;
};
inline constexpr KvSegmentBytes kKvSegments[] = {
    {"plain", &KvBytes::plain},   {"merged", &KvBytes::merged},    {"unmerged", &KvBytes::unmerged},
    {"coded", &KvBytes::coded},   {"pending", &KvBytes::pending},  {"kept", &KvBytes::kept},
    {"chunks", &KvBytes::chunks}, {"expanded", &KvBytes::expanded}};

// State of a token policy between passes, for layers that keep the same tokens: a latent group, coded layers that are
// stored together, or a plain layer with those that share its tokens.
struct KeptGroup : KeptBudget {
  // Sum over the layers that have read a prompt's end, or attended to a token: [tokens], for plain layers [tokens,
  // heads], float32.
  at::Tensor scores{};
  // For a prompt that a layer is reading: the last tokens' queries that score, [n, num_heads, head_dim] each, and how
  // many tokens were read.
  std::vector<at::Tensor> held_queries{};
  std::int64_t num_read = 0;
};

// A plain layer's tokens under a token policy. Layers that keep the same tokens share the first one's `choice`.
struct KeptLayer {
  KeptRows rows;
  KeptGroup choice{};
};

// A plain layer's tokens under a policy that drops channels of keys.
struct PrunedLayer {
  PrunedStore store;
  // While a prompt is read: the last tokens' queries, [n, num_heads, head_dim].
  at::Tensor held_query{};
};

// A copy shares its blocks with the original until one of them writes.
class KvCache {
 public:
  KvCache(std::shared_ptr<const KvPlan> plan, const StoreOptions& options,
          std::shared_ptr<const TokenPolicy> policy = std::make_shared<const TokenPolicy>());

  const KvPlan& plan() const { return *plan_; }
  const TokenPolicy& policy() const { return *policy_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  const std::vector<std::int64_t>& ids() const { return ids_; }  // of all tokens
  void add_tokens(const std::vector<std::int64_t>& ids) {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    num_tokens_ += static_cast<std::int64_t>(ids.size());
  }

  // Only the first `count` tokens stay. For caches that store every token when it is read and never change it: plain layers of
  // exact rows, latents that replace projections.
  void truncate(std::int64_t count);

  KeyValueStore& plain_layer(int layer) { return changed(std::as_const(*this).plain_layer(layer)); }
  const KeyValueStore& plain_layer(int layer) const;
  // Takes a plain layer's place unless the policy is full.
  KeptLayer& kept_layer(int layer) { return changed(std::as_const(*this).kept_layer(layer)); }
  const KeptLayer& kept_layer(int layer) const;
  // For a plain layer or one that reads plain layers, under a token policy that drops tokens.
  const SharingLayers& sharing(int layer) const;
  const std::vector<KeptLayer>& all_kept() const { return kept_; }
  // Likewise under a policy that drops channels.
  PrunedLayer& pruned_layer(int layer) { return changed(std::as_const(*this).pruned_layer(layer)); }
  const PrunedLayer& pruned_layer(int layer) const;
  KeptGroup& kept_group(int group) { return kept_groups_[static_cast<std::size_t>(group)]; }
  const KeptGroup& kept_group(int group) const {
    return kept_groups_[static_cast<std::size_t>(group)];
  }
  LatentStore& group(int group) { return groups_[static_cast<std::size_t>(group)]; }
  const LatentStore& group(int group) const { return groups_[static_cast<std::size_t>(group)]; }

  // That the layer is part of, and what is kept there.
  CodedStore& coded(int layer) { return changed(std::as_const(*this).coded(layer)); }
  const CodedStore& coded(int layer) const;
  KeptGroup& kept_coded(int layer) { return changed(std::as_const(*this).kept_coded(layer)); }
  const KeptGroup& kept_coded(int layer) const;
  std::vector<CodedStore>& all_coded() { return coded_; }
  const std::vector<CodedStore>& all_coded() const { return coded_; }

  PairStore& pair(int layer) { return changed(std::as_const(*this).pair(layer)); }  // likewise
  const PairStore& pair(int layer) const;

  // From now on plain layers may hold different tokens, with their positions. Requires an empty cache; Error
  // under an integer type, whose codes are of all tokens.
  void hold_positions(const StoreOptions& options);
  bool holds_positions() const { return !plain_.empty() && plain_.front().positions.has_value(); }

  std::vector<GroupTokens> tokens() const;      // [num_groups]
  std::vector<PairTokens> pair_tokens() const;  // in the plan's order
  KvBytes bytes() const;
  // The next token is written into blocks that copies of the cache have, too. Under a full policy.
  bool shares_tail() const;
  std::int64_t allocated_bytes() const { return bytes().total(); }

 private:
  template <typename T>
  static T& changed(const T& member) {
    return const_cast<T&>(member);
  }

  std::shared_ptr<const KvPlan> plan_;
  std::int64_t num_tokens_ = 0;
  std::vector<std::int64_t> ids_;
  std::shared_ptr<const TokenPolicy> policy_;
  std::vector<int> plain_index_;  // [num_layers] into plain_, kept_ or pruned_, -1 for other layers
  std::vector<KeyValueStore> plain_;  // plain layers, ascending
  std::vector<KeptLayer> kept_;       // likewise, under a token policy
  std::vector<SharingLayers> sharing_;
  std::vector<PrunedLayer> pruned_;  // likewise
  std::vector<LatentStore> groups_;
  std::vector<KeptGroup> kept_groups_;  // of each group
  std::vector<CodedStore> coded_;       // ascending
  std::vector<KeptGroup> kept_coded_;   // of each
  std::vector<PairStore> pairs_;        // likewise
};

}  // namespace kvc
