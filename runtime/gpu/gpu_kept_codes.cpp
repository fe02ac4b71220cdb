#include "runtime/gpu/gpu_kept_codes.h"

#include <algorithm>

namespace kvc {

GpuKeptCodes::GpuKeptCodes(const KvPlan& plan, KvDtype dtype, const GpuPages& pages,
                           const std::vector<std::int64_t>& most_rows,
                           const std::vector<bool>& is_raw)
    : key_(pages, plan.kv_dim(), code_element(dtype), /*per_channel=*/true),
      value_(pages, plan.kv_dim(), code_element(dtype), /*per_channel=*/false),
      first_position_(plan.compression.sink_tokens),
      is_raw_(is_raw),
      counts_(most_rows.size(), 0),
      num_rows_(at::zeros({2, static_cast<std::int64_t>(most_rows.size())},
                          at::TensorOptions(at::kInt).device(pages.device))) {
  for (std::size_t i = 0; i < most_rows.size(); ++i) {
    key_.reserve(i, most_rows[i]);
    value_.reserve(i, most_rows[i]);
  }
}

void GpuKeptCodes::copy(std::size_t from, std::size_t to) {
  key_.copy(from, to);
  value_.copy(from, to);
  counts_[to] = counts_[from];
  num_rows_.select(1, static_cast<std::int64_t>(to))
      .copy_(num_rows_.select(1, static_cast<std::int64_t>(from)));
}

void GpuKeptCodes::append(const RowCoder& coder, int layer, std::size_t sequence,
                          const at::Tensor& key, const at::Tensor& value) {
  const bool raw = is_raw_[sequence];
  const at::Tensor count = num_rows_[raw ? 1 : 0][static_cast<std::int64_t>(sequence)];
  code_rows(raw ? raw_keys(coder.model, layer, key, first_position_ + counts_[sequence]) : key,
            value, {key_.table(sequence), value_.table(sequence)},
            count.const_data_ptr<std::int32_t>(), coder.executor);
  counts_[sequence] += key.size(0);
  count.fill_(counts_[sequence]);
}

const std::int32_t* GpuKeptCodes::num_rows(bool raw) const {
  return std::find(is_raw_.begin(), is_raw_.end(), raw) == is_raw_.end()
             ? nullptr
             : num_rows_[raw ? 1 : 0].const_data_ptr<std::int32_t>();
}

}  // namespace kvc
