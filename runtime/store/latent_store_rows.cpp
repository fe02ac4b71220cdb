// Tokens of a latent group one by one: what token policies read and remove.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "runtime/store/latent_store.h"

namespace kvc {
namespace {

// The rows from `first` on, `count` at most, counted from there. Rows ascend.
std::vector<std::int64_t> rows_within(const std::vector<std::int64_t>& rows, std::int64_t first,
                                      std::int64_t count) {
  std::vector<std::int64_t> within;
  for (const std::int64_t row : rows) {
    if (row >= first && row < first + count) {
      within.push_back(row - first);
    }
  }
  return within;
}

// Keys and values whose codes share no scales between rows.
void keep_rows(KeyValueStore& store, const std::vector<std::int64_t>& rows) {
  const std::int64_t codes = store.num_codes();
  const std::vector<std::int64_t> exact = rows_within(rows, codes, store.num_exact());
  if (codes > 0) {
    const std::vector<std::int64_t> coded = rows_within(rows, 0, codes);
    store.key_codes->keep(coded);
    store.value_codes->keep(coded);
  }
  store.key.keep(exact);
  store.value.keep(exact);
}

}  // namespace

GroupColumns group_columns(const TokenPolicy& policy) {
  return {.positions = !policy.is_full(),
          .scores = policy.has_scores(),
          .residual_slots = policy.residual_slots};
}

void PositionList::erase(std::int64_t first, std::int64_t count) {
  rows_->erase(first, count);
  size_ -= count;
}

void PositionList::keep(const std::vector<std::int64_t>& indices) {
  rows_->keep(indices);
  size_ = static_cast<std::int64_t>(indices.size());
}

KeptGroupTokens LatentStore::kept_tokens() const {
  const bool by_row = !unmerged_.empty() && unmerged_.front().codes_are_rows();
  return {.tokens = tokens(),
          .row_codes = by_row ? unmerged_.front().num_codes() : 0,
          .residual_slots = slots_.empty() ? 0 : slots_.num_slots()};
}

std::int64_t LatentStore::num_rows() const {
  return merged_.num_rows() + unmerged_positions_.size() + pending_positions_->size();
}

std::int64_t LatentStore::column_bytes() const {
  std::int64_t bytes = slots_.bytes() + (pending_positions_ ? pending_positions_->bytes() : 0);
  for (const RowStore& scores : scores_) {
    bytes += scores.bytes();
  }
  return bytes;
}

at::Tensor LatentStore::next_positions(std::int64_t count) const {
  if (pending_positions_) {
    return pending_positions_->tensor().narrow(0, sink_tokens_, count);
  }
  const std::int64_t first = sink_tokens_ + merged_.num_rows() + unmerged_positions_.size();
  return at::arange(first, first + count, at::kLong);
}

void LatentStore::append_positions(const at::Tensor& positions) {
  pending_positions_->append(positions);
  if (!scores_.empty()) {
    scores_.back().append(at::zeros({positions.size(0)}, at::kFloat));
  }
}

at::Tensor LatentStore::positions() const {
  return at::cat(
      {merged_positions_.tensor(), unmerged_positions_.tensor(), pending_positions_->tensor()});
}

at::Tensor LatentStore::scores() const {
  return at::cat(
      {scores_[0].rows(at::kFloat), scores_[1].rows(at::kFloat), scores_[2].rows(at::kFloat)});
}

void LatentStore::set_scores(const at::Tensor& scores) {
  std::int64_t first = 0;
  for (RowStore& segment : scores_) {
    const std::int64_t count = segment.num_rows();
    segment.truncate(0);
    segment.append(scores.narrow(0, first, count));
    first += count;
  }
}

void LatentStore::merge(const std::vector<std::int64_t>& rows, const at::Tensor& positions,
                        const at::Tensor& latents) {
  std::vector<std::int64_t> stay;
  auto next = rows.begin();
  for (std::int64_t row = 0; row < pending_.front().num_exact(); ++row) {
    if (next != rows.end() && *next + sink_tokens_ == row) {
      ++next;
    } else {
      stay.push_back(row);
    }
  }
  for (KeyValueStore& layer : pending_) {
    keep_rows(layer, stay);
  }
  for (RowStore& held : held_) {
    held.keep(stay);
  }
  merged_.append(latents);
  merged_positions_.append(positions);
}

void LatentStore::order_merged(std::int64_t first) {
  if (!merged_positions_.per_token()) {
    return;  // whole groups merge
  }
  const at::Tensor sorted = merged_positions_.tensor().slice(0, first).argsort();
  const auto* order = sorted.const_data_ptr<std::int64_t>();
  const std::vector<std::int64_t> rows(order, order + sorted.size(0));
  merged_.reorder(first, rows);
  merged_positions_.reorder(first, rows);
}

// For the oldest pending tokens that are no sinks, merged ones and others.
void LatentStore::move_scores(const at::Tensor& merge) {
  if (scores_.empty()) {
    return;
  }
  const at::Tensor decided = scores_[2].rows(sink_tokens_, merge.size(0), at::kFloat);
  scores_[0].append(decided.index_select(0, merge.nonzero().squeeze(1)));
  scores_[1].append(decided.index_select(0, merge.logical_not().nonzero().squeeze(1)));
  scores_[2].erase(sink_tokens_, merge.size(0));
}

// Codes that share scales between rows are coded again, each row under scales of its own.
void LatentStore::keep_unmerged(const std::vector<std::int64_t>& rows) {
  if (static_cast<std::int64_t>(rows.size()) == unmerged_positions_.size()) {
    return;
  }
  for (RowStore& latents : unmerged_latents_) {
    latents.keep(rows);
  }
  for (KeyValueStore& layer : unmerged_) {
    if (layer.num_codes() > 0) {
      layer.code_rows_apart();
    }
    keep_rows(layer, rows);
  }
  unmerged_positions_.keep(rows);
}

void LatentStore::keep(const std::vector<std::int64_t>& rows) {
  const std::int64_t merged = merged_.num_rows(), unmerged = unmerged_positions_.size();
  const std::int64_t pending = pending_positions_->size();
  const std::vector<std::int64_t> of_merged = rows_within(rows, 0, merged),
                                  of_unmerged = rows_within(rows, merged, unmerged),
                                  of_pending = rows_within(rows, merged + unmerged, pending);
  for (RequestBasis& basis : bases_) {
    basis.first_row =
        std::lower_bound(of_merged.begin(), of_merged.end(), basis.first_row) - of_merged.begin();
  }
  merged_.keep(of_merged);
  merged_positions_.keep(of_merged);
  keep_unmerged(of_unmerged);
  for (KeyValueStore& layer : pending_) {
    keep_rows(layer, of_pending);
  }
  for (RowStore& held : held_) {
    held.keep(of_pending);
  }
  pending_positions_->keep(of_pending);
  if (!scores_.empty()) {
    scores_[0].keep(of_merged);
    scores_[1].keep(of_unmerged);
    scores_[2].keep(of_pending);
  }
}

}  // namespace kvc
