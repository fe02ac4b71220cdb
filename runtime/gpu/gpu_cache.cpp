#include "runtime/gpu/gpu_cache.h"

#include <utility>

#include "core/error.h"

namespace kvc {

DeviceElement device_element(at::ScalarType dtype) {
  KVC_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf,
            "the GPU computes in bfloat16 and float16, not in {}; pass --dtype bfloat16",
            c10::toString(dtype));
  return dtype == at::kBFloat16 ? DeviceElement::kBFloat16 : DeviceElement::kFloat16;
}

GpuCache::GpuCache(const KvPlan& plan, at::ScalarType dtype, at::Device device,
                   std::int64_t page_tokens, const std::vector<std::int64_t>& capacities)
    : plan_(plan), dtype_(dtype), page_tokens_(page_tokens), capacities_(capacities) {
  KVC_CHECK(page_tokens % kScaledRows == 0,
            "--page-tokens {}: on a GPU pages have a multiple of {} tokens", page_tokens,
            kScaledRows);
  const GpuPages pages{.device = device, .page_tokens = page_tokens, .most_rows = capacities};
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    const bool is_plain = plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain;
    plain_index_.push_back(is_plain ? static_cast<int>(layers_.size()) : -1);
    if (is_plain) {
      Layer rows{GpuRows(pages, plan.kv_dim(), dtype), GpuRows(pages, plan.kv_dim(), dtype)};
      for (std::size_t sequence = 0; sequence < capacities.size(); ++sequence) {
        rows.key.reserve(sequence, capacities[sequence]);
        rows.value.reserve(sequence, capacities[sequence]);
      }
      layers_.push_back(std::move(rows));
    }
  }
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    groups_.emplace_back(plan, group, dtype, pages);
  }
  pending_rows_ = at::zeros({num_sequences()}, at::TensorOptions(at::kInt).device(device));
  pending_slots_ = at::zeros_like(pending_rows_);
}

KvDtype GpuCache::kv_dtype() const {
  return device_element(dtype_) == DeviceElement::kBFloat16 ? KvDtype::kBFloat16
                                                            : KvDtype::kFloat16;
}

KvBytes GpuCache::bytes(std::size_t sequence) const {
  KvBytes bytes;
  for (const Layer& layer : layers_) {
    bytes.plain += layer.key.bytes(sequence) + layer.value.bytes(sequence);
  }
  for (const GpuGroup& group : groups_) {
    const KvBytes own = group.bytes(sequence);
    bytes.merged += own.merged;
    bytes.unmerged += own.unmerged;
    bytes.pending += own.pending;
  }
  return bytes;
}

at::Tensor GpuCache::keys(int layer, std::size_t sequence, std::int64_t first,
                          std::int64_t count) const {
  return heads(layers_[index(layer)].key.read(sequence, first, count));
}

at::Tensor GpuCache::values(int layer, std::size_t sequence, std::int64_t first,
                            std::int64_t count) const {
  return heads(layers_[index(layer)].value.read(sequence, first, count));
}

void GpuCache::copy(std::size_t from, std::size_t to, std::int64_t count) {
  for (Layer& layer : layers_) {
    for (GpuRows* rows : {&layer.key, &layer.value}) {
      rows->write(to, 0, rows->read(from, 0, count));
    }
  }
  for (GpuGroup& group : groups_) {
    group.copy(from, to);
  }
  for (const at::Tensor& counts : {pending_rows_, pending_slots_}) {
    counts[static_cast<std::int64_t>(to)].copy_(counts[static_cast<std::int64_t>(from)]);
  }
}

void GpuCache::begin_prompt(std::size_t sequence, std::int64_t num_tokens) {
  for (GpuGroup& group : groups_) {
    group.begin_prompt(sequence, num_tokens);
  }
}

void GpuCache::add_token() {
  for (GpuGroup& group : groups_) {
    for (std::size_t sequence = 0; sequence < capacities_.size() && group.decides(); ++sequence) {
      group.add_pending(sequence, 1);
    }
  }
}

void GpuCache::set_pending(std::size_t sequence, std::int64_t pending, std::int64_t fed) {
  const auto index = static_cast<std::int64_t>(sequence);
  pending_rows_[index].fill_(pending + fed);
  pending_slots_[index].fill_(pending + fed - 1);
}

}  // namespace kvc
