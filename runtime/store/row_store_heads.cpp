// One head of one row.
#include <ATen/ATen.h>

#include <cstring>
#include <vector>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/quantise.h"
#include "runtime/store/row_store.h"

namespace kvc {

void RowStore::read_head(std::int64_t row_index, std::int64_t head, float* to) const {
  const std::byte* numbers = has_codes() ? nullptr : row(row_index);
  const std::int64_t first = head * head_dim_;
  if (format_.dtype == at::kBFloat16 && numbers != nullptr) {
    for (std::int64_t channel = 0; channel < head_dim_; ++channel) {
      to[channel] = widen_bfloat16(load_as<std::uint16_t>(numbers, first + channel));
    }
    return;
  }
  const KvRows all = table();
  for (std::int64_t channel = 0; channel < head_dim_; ++channel) {
    to[channel] = kv_element(all, width_, head_dim_, row_index, first + channel);
  }
}

// As codes: the head's codes and the head's scales lie apart in the row.
void RowStore::write_head(std::int64_t row_index, std::int64_t head, const float* from) {
  if (!has_codes()) {
    const at::Tensor numbers =
        stored(at::from_blob(const_cast<float*>(from), {head_dim_}, at::kFloat));
    std::memcpy(mutable_row(row_index) + head * static_cast<std::int64_t>(numbers.nbytes()),
                numbers.const_data_ptr(), numbers.nbytes());
    return;
  }
  const KvElement element = format_.codes->element;
  const std::int64_t bytes = kv_rows_bytes(1, head_dim_, head_dim_, element, KvScales::kPerRow);
  const std::int64_t code_bytes = head_dim_ * element_bits(element) / 8;
  std::vector<std::byte> packed(static_cast<std::size_t>(bytes));
  quantise_rows({.from = from,
                 .from_element = KvElement::kFloat32,
                 .count = 1,
                 .width = head_dim_,
                 .head_dim = head_dim_,
                 .element = element,
                 .scales = KvScales::kPerRow,
                 .to = packed.data()});
  std::byte* to = mutable_row(row_index);
  const std::int64_t all_codes = width_ / head_dim_ * code_bytes, scale_bytes = bytes - code_bytes;
  std::memcpy(to + head * code_bytes, packed.data(), static_cast<std::size_t>(code_bytes));
  std::memcpy(to + all_codes + head * scale_bytes, packed.data() + code_bytes,
              static_cast<std::size_t>(scale_bytes));
}

}  // namespace kvc
