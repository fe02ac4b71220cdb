#include "runtime/compression/leaving_latents.h"

#include <algorithm>

#include "runtime/compression/latent_encoding.h"
#include "runtime/compression/principal_encoding.h"

namespace kvc {
namespace {

at::Tensor as_tensor(const std::vector<std::int64_t>& rows) { return at::tensor(rows, at::kLong); }

// Pending rows, ascending. Under principal directions those between the first and the last are encoded too.
at::Tensor of_pending(const GroupView& group, const std::vector<std::int64_t>& rows) {
  const at::Tensor positions = group.store.pending_positions().tensor();
  if (has_basis(group.plan, LatentBasis::kWeights)) {
    return encode_pending(group, rows, positions.index_select(0, as_tensor(rows))).latents;
  }
  const std::int64_t first = rows.front(), count = rows.back() + 1 - first;
  return encode_principal(group, first, positions.narrow(0, first, count))
      .index_select(0, as_tensor(rows) - first);
}

at::Tensor of_unmerged(const GroupView& group, const std::vector<std::int64_t>& rows) {
  if (group.spec().replaces_projections()) {
    return group.store.unmerged_latent(0).rows(at::kFloat).index_select(0, as_tensor(rows));
  }
  return encode_unmerged(group, rows);
}

// Keys that latents [n, rank] stand for, all layers side by side, before norm and RoPE.
at::Tensor rebuilt_keys(const GroupFactors& factors, const at::Tensor& latents) {
  std::vector<at::Tensor> layers;
  for (const Reconstruction& layer :
       factors.merged_layers.empty() ? factors.layers : factors.merged_layers) {
    layers.push_back(at::linear(latents.narrow(1, 0, factors.key_rank), layer.key.to(at::kFloat)));
  }
  return at::cat(layers, 1);
}

std::int64_t nearest_slot(const GroupFactors& factors, const ResidualSlots& slots,
                          const at::Tensor& key) {
  for (std::int64_t slot = 0; slot < slots.num_slots(); ++slot) {
    if (slots.empty() || slots.count()[slot] == 0) {
      return slot;
    }
  }
  const at::Tensor latents = at::from_blob(const_cast<float*>(slots.key()),
                                           {slots.num_slots(), slots.key_width()}, at::kFloat);
  return at::mv(rebuilt_keys(factors, latents), key).argmax().item<std::int64_t>();
}

at::Tensor latents_of_rows(const GroupView& group, const std::vector<std::int64_t>& rows) {
  const std::int64_t merged = group.store.merged().num_rows();
  const std::int64_t decided = merged + group.store.unmerged_positions().size();
  std::vector<std::int64_t> of_segment[3];
  for (const std::int64_t row : rows) {
    const int segment = row < merged ? 0 : row < decided ? 1 : 2;
    of_segment[segment].push_back(row - (segment == 0 ? 0 : segment == 1 ? merged : decided));
  }
  std::vector<at::Tensor> latents;
  if (!of_segment[0].empty()) {
    latents.push_back(
        group.store.merged().rows(at::kFloat).index_select(0, as_tensor(of_segment[0])));
  }
  if (!of_segment[1].empty()) {
    latents.push_back(of_unmerged(group, of_segment[1]));
  }
  if (!of_segment[2].empty()) {
    latents.push_back(of_pending(group, of_segment[2]));
  }
  return at::cat(latents);
}

}  // namespace

void merge_into_slots(const GroupView& group, const std::vector<std::int64_t>& rows, bool in_runs,
                      ResidualSlots& slots) {
  if (slots.num_slots() == 0 || rows.empty()) {
    return;
  }
  std::vector<std::int64_t> ascending = rows;
  std::sort(ascending.begin(), ascending.end());
  const at::Tensor latents = latents_of_rows(group, ascending).contiguous();
  const at::Tensor all_positions = group.store.positions();
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t per_slot = (count + slots.num_slots() - 1) / slots.num_slots();
  const at::Tensor keys =
      slots.num_slots() > 1 && !in_runs ? rebuilt_keys(group.factors, latents) : at::Tensor();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    const std::int64_t place =
        std::lower_bound(ascending.begin(), ascending.end(), row) - ascending.begin();
    const std::int64_t slot = in_runs          ? i / per_slot
                              : keys.defined() ? nearest_slot(group.factors, slots, keys[place])
                                               : 0;
    const auto position = static_cast<float>(all_positions[row].item<std::int64_t>());
    slots.add(slot, 0, latents[place].const_data_ptr<float>(), &position, 1);
  }
}

}  // namespace kvc
