// Keys and values of all tokens of one layer of one sequence, of which the first ones' keys have lost
// channels: every KV head its own, the same in all tokens (core/token_policy.h). What stays of a key
// lies together, in the order of channels.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "runtime/store/block_list.h"
#include "runtime/store/key_value_store.h"

namespace kvc {

class PrunedStore {
 public:
  // Number of channels that keys keep.
  PrunedStore(const KvPlan& plan, const StoreOptions& options, std::int64_t kept_channels);

  std::int64_t num_rows() const { return num_pruned() + whole_.num_exact(); }
  std::int64_t num_pruned() const { return pruned_.num_exact(); }
  std::int64_t bytes() const { return pruned_.bytes() + whole_.bytes() + mask_.bytes(); }
  bool has_channels() const { return mask_.size() > 0; }

  // key, value [n, num_kv_heads, head_dim], keys post-RoPE.
  void append(const at::Tensor& key, const at::Tensor& value) { whole_.append(key, value); }
  // Call once, with the channels that stay: int64 [num_kv_heads, kept_channels], ascending.
  void set_channels(const at::Tensor& channels);
  at::Tensor channels() const;
  // Drops the other channels of the first `count` whole rows.
  void prune(std::int64_t count);

  const KeyValueStore& pruned() const { return pruned_; }  // keys [n, num_kv_heads, kept_channels]
  const KeyValueStore& whole() const { return whole_; }    // the rows after them

 private:
  std::int64_t head_dim_, kept_channels_;
  KeyValueStore pruned_, whole_;
  BlockList mask_;  // [num_kv_heads, ceil(head_dim / 8)]: a bit for each channel, the lowest first
};

}  // namespace kvc
