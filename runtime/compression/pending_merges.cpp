#include "runtime/compression/pending_merges.h"

#include <numeric>
#include <utility>

#include "runtime/compression/latent_encoding.h"
#include "runtime/compression/merge_mask.h"

namespace kvc {
namespace {

// What each layer holds, where that is not all tokens.
std::vector<std::int64_t> layer_tokens(const KvCache& cache) {
  std::vector<std::int64_t> tokens;
  const KvPlan& plan = cache.plan();
  for (int layer = 0; layer < plan.num_layers() && !cache.policy().is_full(); ++layer) {
    const int group = plan.group_of(layer);
    tokens.push_back(group < 0
                         ? cache.kept_layer(cache.sharing(layer).storage.front()).rows.num_rows()
                         : cache.group(group).num_rows());
  }
  return tokens;
}

std::vector<std::int64_t> all_of(std::int64_t count, std::int64_t first = 0) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

}  // namespace

PendingMerges::PendingMerges(const CompressionContext& context, std::vector<GroupTokens> tokens,
                             std::vector<std::int64_t> counts, std::int64_t num_tokens,
                             KvCache& cache)
    : context_(context), cache_(cache), groups_(counts.size()) {
  candidates_ = merge_candidates(std::move(tokens), std::move(counts), num_tokens);
  candidates_.layer_tokens = layer_tokens(cache);
  any_ = merges_any(cache.plan(), candidates_, context.dtype, context.page_tokens);
}

GroupView PendingMerges::view_of(int group) const {
  return {context_.decoder, cache_.plan(), group,
          context_.factors.latent.groups[static_cast<std::size_t>(group)], cache_.group(group)};
}

// The pending rows of its candidates.
std::vector<std::int64_t> PendingMerges::begin(int group) {
  const LatentStore& store = cache_.group(group);
  const std::int64_t count = count_of(group);
  at_group(group) = {.positions = store.next_positions(count),
                     .latents = {},
                     .left = all_of(count),
                     .first_merged = store.merged().num_rows()};
  return all_of(count, cache_.plan().compression.sink_tokens);
}

void PendingMerges::set_scores(int group, const at::Tensor& scores) {
  const at::Tensor own = scores.contiguous();
  const float* values = own.const_data_ptr<float>();
  candidates_.scores[static_cast<std::size_t>(group)].assign(values, values + own.numel());
}

void PendingMerges::rank(int group) {
  const std::vector<std::int64_t> rows = begin(group);
  if (rows.empty() || !any_) {
    return;
  }
  const EncodedTokens encoded = encode_pending(view_of(group), rows, at_group(group).positions);
  set_scores(group, encoded.scores);
  at_group(group).latents = encoded.latents;
}

void PendingMerges::rank_ahead(int group) {
  const std::vector<std::int64_t> rows = begin(group);
  if (rows.empty() || !any_) {
    return;
  }
  set_scores(group, pending_scores(view_of(group), rows, at_group(group).positions));
  const auto merges =
      select_merges(cache_.plan(), candidates_, context_.dtype, context_.page_tokens);
  for (int ranked = 0; ranked <= group; ++ranked) {
    merge_ahead(ranked, merges[static_cast<std::size_t>(ranked)]);
  }
}

void PendingMerges::merge_ahead(int group, const std::vector<bool>& merges) {
  Group& own = at_group(group);
  std::vector<std::int64_t> places, left;
  for (std::size_t place = 0; place < own.left.size(); ++place) {
    if (merges[static_cast<std::size_t>(own.left[place])]) {
      places.push_back(static_cast<std::int64_t>(place));
    } else {
      left.push_back(own.left[place]);
    }
  }
  if (!places.empty()) {
    cache_.group(group).merge(places, positions_of(group, places), latents_of(group, places));
    own.left = std::move(left);
  }
}

// For candidates that are left.
at::Tensor PendingMerges::positions_of(int group, const std::vector<std::int64_t>& places) {
  const Group& own = at_group(group);
  return own.positions.index_select(0, at::tensor(own.left, at::kLong))
      .index_select(0, at::tensor(places, at::kLong));
}

at::Tensor PendingMerges::latents_of(int group, const std::vector<std::int64_t>& places) {
  if (places.empty()) {
    return {};
  }
  if (const at::Tensor& latents = at_group(group).latents; latents.defined()) {
    return latents.index_select(0, at::tensor(places, at::kLong));  // none have merged ahead
  }
  std::vector<std::int64_t> rows = places;
  for (std::int64_t& row : rows) {
    row += cache_.plan().compression.sink_tokens;
  }
  return encode_pending(view_of(group), rows, positions_of(group, places)).latents;
}

void PendingMerges::decide(int group) {
  if (count_of(group) == 0) {
    return;
  }
  if (merges_.empty()) {
    merges_ = select_merges(cache_.plan(), candidates_, context_.dtype, context_.page_tokens);
  }
  const Group& own = at_group(group);
  std::vector<bool> merges;
  std::vector<std::int64_t> places;
  for (const std::int64_t candidate : own.left) {
    merges.push_back(merges_[static_cast<std::size_t>(group)][static_cast<std::size_t>(candidate)]);
    if (merges.back()) {
      places.push_back(static_cast<std::int64_t>(merges.size()) - 1);
    }
  }
  LatentStore& store = cache_.group(group);
  store.decide(merge_mask(merges),
               positions_of(group, all_of(static_cast<std::int64_t>(merges.size()))),
               latents_of(group, places));
  if (static_cast<std::int64_t>(own.left.size()) < count_of(group)) {
    store.order_merged(own.first_merged);
  }
  at_group(group) = {};
}

}  // namespace kvc
