#include "runtime/gpu/gpu_cache.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

KvDtype kv_dtype_of(at::ScalarType dtype) {
  return device_element(dtype) == DeviceElement::kBFloat16 ? KvDtype::kBFloat16 : KvDtype::kFloat16;
}

}  // namespace

DeviceElement device_element(at::ScalarType dtype) {
  KVC_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf,
            "the GPU computes in bfloat16 and float16, not in {}; pass --dtype bfloat16",
            c10::toString(dtype));
  return dtype == at::kBFloat16 ? DeviceElement::kBFloat16 : DeviceElement::kFloat16;
}

GpuCache::GpuCache(const KvPlan& plan, at::ScalarType dtype, at::Device device,
                   std::int64_t page_tokens, const std::vector<std::int64_t>& capacities)
    : plan_(plan), dtype_(dtype), page_tokens_(page_tokens), first_rows_{0} {
  KVC_CHECK(page_tokens % kScaledRows == 0,
            "--page-tokens {}: on a GPU pages have a multiple of {} tokens", page_tokens,
            kScaledRows);
  for (const std::int64_t tokens : capacities) {
    const std::int64_t blocks = (tokens + page_tokens - 1) / page_tokens;
    max_blocks_ = std::max(max_blocks_, blocks);
    first_rows_.push_back(first_rows_.back() + blocks * page_tokens);
  }
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    const bool is_plain = plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain;
    plain_index_.push_back(is_plain ? static_cast<int>(layers_.size()) : -1);
    if (is_plain) {
      // Zeros: pages' ends take part in products, with weights of zero.
      Layer rows{at::zeros({first_rows_.back(), plan.num_kv_heads, plan.head_dim}, options),
                 at::zeros({first_rows_.back(), plan.num_kv_heads, plan.head_dim}, options),
                 {},
                 {}};
      rows.key_table = table_of(rows.key);
      rows.value_table = table_of(rows.value);
      layers_.push_back(std::move(rows));
    }
  }
}

std::int64_t GpuCache::bytes_of(const KvPlan& plan, at::ScalarType dtype, std::int64_t page_tokens,
                                const std::vector<std::int64_t>& capacities) {
  std::int64_t bytes = 0;
  for (const std::int64_t tokens : capacities) {
    bytes += plan.num_layers_from(KvSource::kPlain) *
             plain_layer_bytes(plan, tokens, kv_dtype_of(dtype), page_tokens);
  }
  return bytes;
}

std::int64_t GpuCache::bytes() const {
  std::int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += static_cast<std::int64_t>(layer.key.nbytes() + layer.value.nbytes());
  }
  return bytes;
}

std::int64_t GpuCache::sequence_bytes(std::size_t sequence) const {
  return bytes_of(plan_, dtype_, page_tokens_, {first_rows_[sequence + 1] - first_rows_[sequence]});
}

at::Tensor GpuCache::keys(int layer, std::size_t sequence, std::int64_t first,
                          std::int64_t count) const {
  return layers_[index(layer)].key.narrow(0, first_rows_[sequence] + first, count);
}

at::Tensor GpuCache::values(int layer, std::size_t sequence, std::int64_t first,
                            std::int64_t count) const {
  return layers_[index(layer)].value.narrow(0, first_rows_[sequence] + first, count);
}

void GpuCache::copy(std::size_t from, std::size_t to, std::int64_t count) {
  for (const Layer& layer : layers_) {
    for (const at::Tensor& rows : {layer.key, layer.value}) {
      rows.narrow(0, first_rows_[to], count).copy_(rows.narrow(0, first_rows_[from], count));
    }
  }
}

at::Tensor GpuCache::table_of(const at::Tensor& rows) const {
  const auto first = reinterpret_cast<std::int64_t>(rows.data_ptr());
  const std::int64_t row_bytes = plan_.kv_dim() * static_cast<std::int64_t>(rows.element_size());
  const at::Tensor table = at::zeros({num_sequences(), max_blocks_}, at::kLong);
  for (std::int64_t sequence = 0; sequence < num_sequences(); ++sequence) {
    const auto s = static_cast<std::size_t>(sequence);
    for (std::int64_t row = first_rows_[s]; row < first_rows_[s + 1]; row += page_tokens_) {
      table[sequence][(row - first_rows_[s]) / page_tokens_] = first + row * row_bytes;
    }
  }
  return table.to(rows.device());
}

DeviceRows GpuCache::rows_of(const at::Tensor& table) const {
  return {.blocks = reinterpret_cast<const void* const*>(table.data_ptr()),
          .max_blocks = max_blocks_,
          .block_rows = static_cast<int>(page_tokens_),
          .width = static_cast<int>(plan_.kv_dim()),
          .element = device_element(dtype_)};
}

}  // namespace kvc
