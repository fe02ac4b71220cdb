// What a group's stores have in common: room, copies, bytes.
#include <algorithm>

#include "runtime/gpu/gpu_group.h"

namespace kvc {

// Calls visit(part, rows) for every store that there is.
template <class Group, class Visit>
void GpuGroup::visit_stores(Group& group, const Visit& visit) {
  const auto visit_present = [&](Part part, auto&... stores) {
    const auto one = [&](auto& rows) {
      if (rows) {
        visit(part, *rows);
      }
    };
    (one(stores), ...);
  };
  for (auto& layer : group.layers) {
    visit_present(Part::kPending, layer.pending_key, layer.pending_value, layer.held_latent,
                  layer.key_rms);
    visit_present(Part::kUnmerged, layer.unmerged_key, layer.unmerged_value, layer.unmerged_latent);
    for (auto& basis : layer.bases) {
      visit(Part::kBasis, basis.key);
      visit(Part::kBasis, basis.value);
    }
  }
  visit_present(Part::kPending, group.held_weighted, group.held_score);
  visit_present(Part::kMerged, group.merged);
  visit_present(group.stores_positions_ ? Part::kMerged : Part::kUncounted, group.merged_positions);
  visit_present(group.stores_positions_ ? Part::kUnmerged : Part::kUncounted,
                group.unmerged_positions);
}

void GpuGroup::begin_prompt(std::size_t sequence, std::int64_t num_tokens) {
  if (!decides_) {
    return;
  }
  pending_[sequence] += num_tokens;
  visit_stores(*this, [&](Part part, GpuRows& rows) {
    if (part == Part::kPending) {
      rows.reserve(sequence, pending_[sequence]);
    }
  });
  capacity_[sequence] = std::max(capacity_[sequence], pending_[sequence]);
}

void GpuGroup::allow(std::size_t sequence, std::int64_t tokens) {
  visit_stores(*this, [&](Part part, GpuRows& rows) {
    if (part != Part::kBasis) {
      rows.allow(tokens);
    }
  });
  if (!decides_) {
    reserve_all(sequence, tokens);
  }
}

void GpuGroup::copy(std::size_t from, std::size_t to) {
  visit_stores(*this, [&](Part, GpuRows& rows) { rows.copy(from, to); });
  for (std::vector<std::int64_t>* counts :
       {&merged_rows_, &unmerged_rows_, &pending_, &capacity_, &bases_}) {
    (*counts)[to] = (*counts)[from];
  }
  first_merged_[to] = first_merged_[from];
  set_counts(to);
}

KvBytes GpuGroup::bytes(std::size_t sequence) const {
  KvBytes bytes;
  visit_stores(*this, [&](Part part, const GpuRows& rows) {
    std::int64_t uncounted = 0;
    (part == Part::kPending     ? bytes.pending
     : part == Part::kUnmerged  ? bytes.unmerged
     : part == Part::kUncounted ? uncounted
                                : bytes.merged) += rows.bytes(sequence);
  });
  return bytes;
}

}  // namespace kvc
