// What a group's stores have in common: room, copies, bytes.
#include "runtime/gpu/gpu_group.h"

namespace kvc {

namespace {

std::int64_t rows_bytes(const std::optional<GpuRows>& rows, std::size_t sequence) {
  return rows ? rows->bytes(sequence) : 0;
}

}  // namespace

std::vector<GpuRows*> GpuGroup::pending_stores() {
  std::vector<GpuRows*> found;
  const auto add = [&](std::optional<GpuRows>& rows) {
    if (rows) {
      found.push_back(&*rows);
    }
  };
  for (GpuGroupLayer& layer : layers) {
    for (auto* rows :
         {&layer.pending_key, &layer.pending_value, &layer.held_latent, &layer.key_rms}) {
      add(*rows);
    }
  }
  add(held_weighted);
  add(held_score);
  return found;
}

std::vector<GpuRows*> GpuGroup::token_stores() {
  std::vector<GpuRows*> found = pending_stores();
  const auto add = [&](std::optional<GpuRows>& rows) {
    if (rows) {
      found.push_back(&*rows);
    }
  };
  for (GpuGroupLayer& layer : layers) {
    for (auto* rows : {&layer.unmerged_key, &layer.unmerged_value, &layer.unmerged_latent}) {
      add(*rows);
    }
  }
  for (auto* rows : {&merged, &merged_positions, &unmerged_positions}) {
    add(*rows);
  }
  return found;
}

std::vector<GpuRows*> GpuGroup::stores() {
  std::vector<GpuRows*> found = token_stores();
  for (GpuGroupLayer& layer : layers) {
    for (GpuBasis& basis : layer.bases) {
      found.insert(found.end(), {&basis.key, &basis.value});
    }
  }
  return found;
}

void GpuGroup::allow(std::size_t sequence, std::int64_t tokens) {
  for (GpuRows* rows : token_stores()) {
    rows->allow(tokens);
  }
  if (!decides_) {
    reserve_all(sequence, tokens);
  }
}

void GpuGroup::copy(std::size_t from, std::size_t to) {
  for (GpuRows* rows : stores()) {
    rows->copy(from, to);
  }
  for (std::vector<std::int64_t>* counts :
       {&merged_rows_, &unmerged_rows_, &pending_, &capacity_, &bases_}) {
    (*counts)[to] = (*counts)[from];
  }
  first_merged_[to] = first_merged_[from];
  set_counts(to);
}

KvBytes GpuGroup::bytes(std::size_t sequence) const {
  KvBytes bytes;
  for (const GpuGroupLayer& layer : layers) {
    bytes.unmerged += rows_bytes(layer.unmerged_key, sequence) +
                      rows_bytes(layer.unmerged_value, sequence) +
                      rows_bytes(layer.unmerged_latent, sequence);
    bytes.pending += rows_bytes(layer.pending_key, sequence) +
                     rows_bytes(layer.pending_value, sequence) +
                     rows_bytes(layer.held_latent, sequence) + rows_bytes(layer.key_rms, sequence);
    for (const GpuBasis& basis : layer.bases) {
      bytes.merged += basis.key.bytes(sequence) + basis.value.bytes(sequence);
    }
  }
  bytes.merged += rows_bytes(merged, sequence);
  if (stores_positions_) {
    bytes.merged += rows_bytes(merged_positions, sequence);
    bytes.unmerged += rows_bytes(unmerged_positions, sequence);
  }
  bytes.pending += rows_bytes(held_weighted, sequence) + rows_bytes(held_score, sequence);
  return bytes;
}

}  // namespace kvc
