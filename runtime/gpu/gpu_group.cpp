#include "runtime/gpu/gpu_group.h"

#include <algorithm>

namespace kvc {
namespace {

// Rows behind the first `count`.
void append(std::optional<GpuRows>& rows, std::size_t sequence, std::int64_t count,
            const at::Tensor& added) {
  if (rows && added.size(0) > 0) {
    rows->reserve(sequence, count + added.size(0));
    rows->write(sequence, count, added);
  }
}

}  // namespace

GpuGroup::GpuGroup(const KvPlan& plan, int group, at::ScalarType dtype, const GpuPages& pages)
    : sink_tokens_(plan.compression.sink_tokens), basis_pages_(pages), dtype_(dtype) {
  const LatentGroup& spec = plan.groups[static_cast<std::size_t>(group)];
  const std::size_t num_sequences = pages.most_rows.size();
  const bool latents = keeps_latents(plan, group),
             weighs =
                 plan.compression.rule != MergeRule::kLs && spec.basis == LatentBasis::kWeights;
  decides_ = !spec.replaces_projections();
  stores_positions_ = plan.compression.granularity == Granularity::kToken;
  const auto rows = [&](std::int64_t width, at::ScalarType type) {
    return std::optional<GpuRows>(std::in_place, pages, width, type);
  };
  basis_pages_.most_rows.assign(num_sequences, plan.kv_dim());
  first_merged_.resize(num_sequences);
  for (int index = 0; index < spec.num_layers; ++index) {
    GpuGroupLayer& layer = layers.emplace_back();
    if (decides_) {
      layer.pending_key = rows(plan.kv_dim(), dtype);
      layer.pending_value = rows(plan.kv_dim(), dtype);
    }
    if (latents) {
      layer.unmerged_latent = rows(spec.rank, dtype);
    } else {
      layer.unmerged_key = rows(plan.kv_dim(), dtype);
      layer.unmerged_value = rows(plan.kv_dim(), dtype);
    }
    if (latents && decides_) {
      layer.held_latent = rows(spec.rank, dtype);
    }
    if (!latents && !weighs && plan.key_norm && spec.basis == LatentBasis::kWeights) {
      layer.key_rms = rows(plan.num_kv_heads, at::kFloat);
    }
  }
  const bool merges = decides_ && plan.compression.rule != MergeRule::kNone;
  if (merges) {
    merged = rows(spec.rank, dtype);
  }
  if (merges && spec.basis == LatentBasis::kWeights) {
    GpuPages places = pages;
    places.bytes = stores_positions_ ? pages.bytes : std::make_shared<GpuPageBytes>();
    merged_positions.emplace(places, 1, at::kInt);
    unmerged_positions.emplace(places, 1, at::kInt);
  }
  if (decides_ && weighs && !latents) {
    held_weighted = rows(spec.rank, dtype);
    held_score = rows(1, at::kFloat);
  }
  for (std::vector<std::int64_t>* counts :
       {&merged_rows_, &unmerged_rows_, &pending_, &capacity_, &bases_}) {
    counts->assign(num_sequences, 0);
  }
  const at::TensorOptions ints = at::TensorOptions(at::kInt).device(pages.device);
  num_merged_ = at::zeros({static_cast<std::int64_t>(num_sequences)}, ints);
  num_unmerged_ = at::zeros_like(num_merged_);
  if (spec.basis == LatentBasis::kRequest) {
    key_width_ = spec.key_width();
    value_width_ = spec.value_width();
    allow_basis();
  }
  for (std::size_t sequence = 0; sequence < num_sequences && !decides_; ++sequence) {
    reserve_all(sequence, pages.most_rows[sequence]);
  }
}

void GpuGroup::reserve_all(std::size_t sequence, std::int64_t tokens) {
  unmerged_rows_[sequence] = tokens;
  for (GpuGroupLayer& layer : layers) {
    layer.unmerged_latent->reserve(sequence, tokens);
  }
}

void GpuGroup::decide(std::size_t sequence, const at::Tensor& merge, const at::Tensor& latents,
                      std::int64_t capacity) {
  const at::Tensor positions = next_positions(sequence, merge.size(0));
  const at::Tensor kept = merge.logical_not().nonzero().squeeze(1);
  const at::Tensor kept_here = kept.to(num_merged_.device());
  const std::int64_t count = merge.size(0), before = unmerged_rows_[sequence];
  const auto due = [&](const std::optional<GpuRows>& rows) {
    return rows->read(sequence, sink_tokens_, count).index_select(0, kept_here);
  };
  const std::int64_t left = pending_[sequence] - count;
  const auto take_away = [&](GpuRows& rows) {  // of the pending ones
    const std::int64_t sinks = std::min(left, sink_tokens_);
    rows.replace(
        sequence,
        at::cat({rows.read(sequence, 0, sinks), rows.read(sequence, sinks + count, left - sinks)}),
        capacity);
  };
  for (GpuGroupLayer& layer : layers) {
    if (layer.unmerged_latent && count > 0) {
      append(layer.unmerged_latent, sequence, before, due(layer.held_latent));
    } else if (count > 0) {
      append(layer.unmerged_key, sequence, before, due(layer.pending_key));
      append(layer.unmerged_value, sequence, before, due(layer.pending_value));
    }
    for (auto* rows :
         {&layer.pending_key, &layer.pending_value, &layer.held_latent, &layer.key_rms}) {
      if (*rows) {
        take_away(**rows);
      }
    }
  }
  for (auto* rows : {&held_weighted, &held_score}) {
    if (*rows) {
      take_away(**rows);
    }
  }
  append(unmerged_positions, sequence, before, positions.index_select(0, kept));
  if (latents.defined()) {
    const std::int64_t merged_before = merged_rows_[sequence];
    append(merged, sequence, merged_before, latents);
    append(merged_positions, sequence, merged_before,
           positions.index_select(0, merge.nonzero().squeeze(1)));
    merged_rows_[sequence] += latents.size(0);
  }
  unmerged_rows_[sequence] += kept.size(0);
  pending_[sequence] = left;
  capacity_[sequence] = capacity;
  set_counts(sequence);
}

void GpuGroup::set_counts(std::size_t sequence) {
  const auto index = static_cast<std::int64_t>(sequence);
  num_merged_[index].fill_(merged_rows_[sequence]);
  num_unmerged_[index].fill_(unmerged_rows_[sequence]);
  for (std::size_t basis = 0; basis < ranges_.size(); ++basis) {
    const bool is_there = basis < first_merged_[sequence].size();
    ranges_[basis].first_rows[index].fill_(is_there ? first_merged(sequence, basis) : 0);
    ranges_[basis].num_rows[index].fill_(is_there ? first_merged(sequence, basis + 1) : 0);
  }
}

void GpuGroup::allow_basis() {
  for (GpuGroupLayer& layer : layers) {
    layer.bases.push_back(
        {GpuRows(basis_pages_, key_width_, dtype_), GpuRows(basis_pages_, value_width_, dtype_)});
  }
  ranges_.push_back({at::zeros_like(num_merged_), at::zeros_like(num_merged_)});
}

void GpuGroup::add_basis(std::size_t sequence, const std::vector<BasisRows>& given) {
  const auto number = static_cast<std::size_t>(bases_[sequence]);
  if (number == ranges_.size()) {
    allow_basis();
  }
  for (std::size_t index = 0; index < layers.size(); ++index) {
    GpuBasis& basis = layers[index].bases[number];
    basis.key.replace(sequence, given[index].key, given[index].key.size(0));
    basis.value.replace(sequence, given[index].value, given[index].value.size(0));
  }
  first_merged_[sequence].push_back(merged_rows_[sequence]);
  ++bases_[sequence];
  set_counts(sequence);
}

std::int64_t GpuGroup::first_merged(std::size_t sequence, std::size_t basis) const {
  const std::vector<std::int64_t>& first = first_merged_[sequence];
  return basis < first.size() ? first[basis] : merged_rows_[sequence];
}

GroupTokens GpuGroup::tokens(std::size_t sequence) const {
  return {.merged = merged_rows_[sequence],
          .unmerged = unmerged_rows_[sequence],
          .pending = pending_[sequence],
          .bases = bases_[sequence]};
}

GroupTokens GpuGroup::reserved(std::size_t sequence) const {
  GroupTokens tokens = this->tokens(sequence);
  tokens.pending = capacity_[sequence];
  return tokens;
}

at::Tensor GpuGroup::next_positions(std::size_t sequence, std::int64_t count) const {
  const std::int64_t first = sink_tokens_ + merged_rows_[sequence] + unmerged_rows_[sequence];
  return at::arange(first, first + count, at::kLong);
}

}  // namespace kvc
