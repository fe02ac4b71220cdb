#include "runtime/store/latent_store.h"

#include <algorithm>

#include "runtime/store/token_counts.h"

namespace kvc {
namespace {

RowStore exact_rows(const StoreOptions& options, std::vector<std::int64_t> row_shape,
                    std::optional<at::ScalarType> dtype = {}) {
  return {options.pool, {.shape = std::move(row_shape), .dtype = dtype.value_or(options.dtype)}};
}

bool positions_per_token(const KvPlan& plan) {
  return plan.compression.rule != MergeRule::kNone &&
         plan.compression.granularity == Granularity::kToken;
}

}  // namespace

PositionList::PositionList(const StoreOptions& options, bool per_token) {
  if (per_token) {
    rows_ = exact_rows(options, {}, at::kInt);
  }
}

void PositionList::append(const at::Tensor& positions) {
  const std::int64_t count = positions.size(0);
  size_ += count;
  if (count == 0) {
    return;
  }
  if (rows_) {
    rows_->append(positions);
    return;
  }
  const auto first = positions[0].item<std::int64_t>();
  if (!runs_.empty() && runs_.back().first + runs_.back().second == first) {
    runs_.back().second += count;
  } else {
    runs_.emplace_back(first, count);
  }
}

void PositionList::truncate(std::int64_t count) {
  while (size_ > count) {
    auto& [first, length] = runs_.back();
    const std::int64_t excess = std::min(size_ - count, length);
    size_ -= excess;
    length -= excess;
    if (length == 0) {
      runs_.pop_back();
    }
  }
}

at::Tensor PositionList::tensor() const {
  if (rows_) {
    return rows_->rows(at::kLong);
  }
  std::vector<at::Tensor> ranges{at::empty({0}, at::kLong)};
  for (const auto& [first, count] : runs_) {
    ranges.push_back(at::arange(first, first + count, at::kLong));
  }
  return at::cat(ranges);
}

std::int64_t PositionList::operator[](std::int64_t row) const {
  auto run = runs_.begin();
  for (; row >= run->second; ++run) {
    row -= run->second;
  }
  return run->first + row;
}

std::int64_t PositionList::count_before(std::int64_t position) const {
  if (rows_) {
    const at::Tensor positions = rows_->rows(at::kInt);
    const auto* first = positions.const_data_ptr<std::int32_t>();
    return std::lower_bound(first, first + size_, position) - first;
  }
  std::int64_t count = 0;
  for (const auto& [first, length] : runs_) {
    count += std::clamp<std::int64_t>(position - first, 0, length);
  }
  return count;
}

LatentStore::LatentStore(const KvPlan& plan, int group, const StoreOptions& options,
                         const GroupColumns& columns)
    : options_(options),
      sink_tokens_(plan.compression.sink_tokens),
      merged_positions_(options, columns.positions || positions_per_token(plan)),
      unmerged_positions_(options, columns.positions || positions_per_token(plan)),
      merged_(latent_rows(plan.groups[static_cast<std::size_t>(group)].rank, options)),
      slots_(options.pool, columns.residual_slots, 1,
             plan.groups[static_cast<std::size_t>(group)].rank, 1) {
  reserve(plan, group, options);
  if (columns.positions) {
    pending_positions_.emplace(options, true);
  }
  for (int segment = 0; columns.scores && segment < 3; ++segment) {
    scores_.push_back(exact_rows(options, {}, at::kFloat));
  }
}

void LatentStore::reserve(const KvPlan& plan, int group, const StoreOptions& options) {
  const LatentGroup& spec = plan.groups[static_cast<std::size_t>(group)];
  const bool latents = kvc::keeps_latents(plan, group);
  const MergeRule rule = plan.compression.rule;
  for (int index = 0; index < spec.num_layers; ++index) {
    if (plan.own_widths) {
      const KvWidths own = *plan.own_widths;
      pending_.push_back(
          {.key = exact_rows(options, {1, own.key}), .value = exact_rows(options, {1, own.value})});
      unmerged_.push_back(plain_store(plan, options));
      merged_rotary_.push_back(exact_rows(options, {1, own.value}));
      continue;
    }
    pending_.push_back(exact_store(plan, options));
    if (plan.selective) {
      chunks_.push_back(chunk_layer(plan, options));
    }
    if (latents) {
      unmerged_latents_.push_back(latent_rows(spec.rank, options));
      held_.push_back(exact_rows(options, {spec.rank}));
      continue;
    }
    unmerged_.push_back(plain_store(plan, options));
    if (rule == MergeRule::kLs && plan.key_norm && spec.basis == LatentBasis::kWeights) {
      holds_key_rms_ = true;
      held_.push_back(exact_rows(options, {plan.num_kv_heads}, at::kFloat));
    }
  }
  if (!latents && rule != MergeRule::kLs) {
    held_.push_back(exact_rows(options, {spec.rank}));
    held_.push_back(exact_rows(options, {}, at::kFloat));
  }
}

GroupTokens LatentStore::tokens() const {
  return {.merged = merged_.num_rows(),
          .unmerged = unmerged_positions_.size(),
          .pending = pending_.front().num_exact(),
          .bases = static_cast<std::int64_t>(bases_.size()),
          .outliers = chunks_.empty() ? 0 : chunks_.front().outlier_chunks.num_rows()};
}

std::int64_t RequestBasis::bytes() const { return bytes_of(key) + bytes_of(value); }

void LatentStore::add_basis(std::int64_t first_row, const std::vector<at::Tensor>& key,
                            const std::vector<at::Tensor>& value) {
  RequestBasis basis{.first_row = first_row, .key = {}, .value = {}};
  const auto stored = [this](const at::Tensor& rows) {
    RowStore store = exact_rows(options_, {rows.size(1)});
    store.append(rows);
    return store;
  };
  for (std::size_t index = 0; index < key.size(); ++index) {
    basis.key.push_back(stored(key[index]));
    basis.value.push_back(stored(value[index]));
  }
  bases_.push_back(std::move(basis));
}

std::int64_t Expansion::bytes() const { return bytes_of(merged) + bytes_of(unmerged); }

std::vector<std::int64_t> LatentStore::segment_bytes() const {
  return {merged_.bytes() + merged_positions_.bytes() + bytes_of(bases_) + bytes_of(merged_rotary_),
          bytes_of(unmerged_) + bytes_of(unmerged_latents_) + unmerged_positions_.bytes(),
          bytes_of(pending_) + bytes_of(held_), bytes_of(chunks_)};
}

void LatentStore::append_pending(int index, const at::Tensor& key, const at::Tensor& value) {
  pending_[static_cast<std::size_t>(index)].append(key, value);
}

void LatentStore::append_own(int index, const at::Tensor& latent, const at::Tensor& rotary_key) {
  append_pending(index, latent.unsqueeze(1), rotary_key);
}

void LatentStore::hold(int index, const at::Tensor& rows) {
  held_[static_cast<std::size_t>(index)].append(rows);
}

void LatentStore::append_latent(int index, const at::Tensor& latent, const at::Tensor& positions) {
  unmerged_latents_[static_cast<std::size_t>(index)].append(latent);
  if (index == 0) {
    if (!scores_.empty()) {
      scores_[1].append(at::zeros({positions.size(0)}, at::kFloat));
    }
    unmerged_positions_.append(positions);
  }
}

void LatentStore::truncate(std::int64_t count) {
  KVC_CHECK(keeps_latents() && merged_.num_rows() + pending_.front().num_exact() == 0,
            "latents: tokens that left their order cannot be taken back");
  expansion_.reset();
  unmerged_positions_.truncate(count);
  for (RowStore& latents : unmerged_latents_) {
    latents.truncate(count);
  }
}

// Keeps those at `kept` of the `count` oldest pending rows of a layer, unmerged.
void LatentStore::move_decided(std::size_t index, const at::Tensor& kept, std::int64_t count) {
  const std::int64_t first = sink_tokens_;
  const auto select = [&](const RowStore& rows) {
    return rows.rows(first, count, rows.dtype()).index_select(0, kept);
  };
  KeyValueStore& pending = pending_[index];
  if (!merged_rotary_.empty()) {
    merged_rotary_[index].append(pending.value.rows(first, count, pending.value.dtype()));
  } else if (keeps_latents()) {
    if (kept.size(0) > 0) {
      unmerged_latents_[index].append(select(held_[index]));
    }
    held_[index].erase(first, count);
  } else if (kept.size(0) > 0) {
    unmerged_[index].append(select(pending.key), select(pending.value));
  }
  pending.key.erase(first, count);
  pending.value.erase(first, count);
}

void LatentStore::decide(const at::Tensor& merge, const at::Tensor& positions,
                         const at::Tensor& latents) {
  const std::int64_t count = merge.size(0), first = sink_tokens_;
  const at::Tensor keep = merge.logical_not();
  const bool copies = !merged_rotary_.empty() || keep.any().item<bool>();
  const std::int64_t part = copies ? rows_decided_at_once(count) : count;
  for (std::size_t index = 0; index < pending_.size(); ++index) {
    for (std::int64_t begin = 0; begin < count; begin += part) {
      const std::int64_t rows = std::min(part, count - begin);
      move_decided(index, keep.narrow(0, begin, rows).nonzero().squeeze(1), rows);
    }
  }
  for (std::size_t i = 0; i < held_.size() && !keeps_latents(); ++i) {
    held_[i].erase(first, count);
  }
  if (pending_positions_) {
    pending_positions_->erase(first, count);
    move_scores(merge);
  }
  unmerged_positions_.append(positions.index_select(0, keep.nonzero().squeeze(1)));
  if (latents.defined()) {
    merged_.append(latents);
    merged_positions_.append(positions.index_select(0, merge.nonzero().squeeze(1)));
  }
}

}  // namespace kvc
