// What GpuKept holds under policies that leave generated tokens alone: rows in pages, and codes.
#include <algorithm>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_kept.h"

namespace kvc {

void GpuKept::add_pages(int layer, const GpuPages& pages) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(numbers_.dtype());
  const std::vector<KeptRoom>& rooms = rooms_[index(layer)];
  Paged& paged = paged_.emplace_back(Paged{GpuRows(pages, plan_.kv_dim(), dtype),
                                           GpuRows(pages, plan_.kv_dim(), dtype),
                                           std::vector<std::int64_t>(rooms.size(), 0)});
  std::vector<std::int64_t> most_codes;
  std::vector<bool> is_raw;
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    const std::int64_t rows = rooms[i].rows;
    for (GpuRows* exact : {&paged.key, &paged.value}) {
      has_codes() ? exact->reserve_ring(i, exact_capacity(plan_, rows))
                  : exact->reserve_from(i, pages.most_rows[i] - rows, rows);
    }
    most_codes.push_back(quantised_tokens(plan_, rows, kv_dtype_));
    is_raw.push_back(!rooms[i].is_exceeded);
  }
  if (has_codes()) {
    paged.codes.emplace(plan_, kv_dtype_, pages, most_codes, is_raw);
  }
}

void GpuKept::set_first_row(int layer, std::size_t sequence, std::int64_t row) {
  paged_[index(layer)].first_rows[sequence] = row;
  first_rows_[layer][static_cast<std::int64_t>(sequence)].fill_(row);
}

void GpuKept::write_last(int layer, std::size_t sequence, std::int64_t num_tokens,
                         const at::Tensor& key, const at::Tensor& value, const RowCoder& coder) {
  Paged& paged = paged_[index(layer)];
  const std::int64_t rows = key.size(0), sinks = std::min(rows, plan_.compression.sink_tokens);
  const std::int64_t coded = has_codes() ? quantised_tokens(plan_, rows, kv_dtype_) : 0;
  const std::int64_t first = num_tokens - rows + coded;
  if (coded > 0) {
    paged.codes->append(coder, layer, sequence, key.narrow(0, sinks, coded),
                        value.narrow(0, sinks, coded));
  }
  const auto write_exact = [&](GpuRows& to, const at::Tensor& all) {
    to.write(sequence, first, all.narrow(0, 0, sinks));
    to.write(sequence, first + sinks, all.slice(0, sinks + coded));
  };
  write_exact(paged.key, key);
  write_exact(paged.value, value);
  set_first_row(layer, sequence, first);
}

void GpuKept::code_blocks(const std::vector<std::int64_t>& num_tokens, const RowCoder& coder) {
  const std::int64_t sinks = plan_.compression.sink_tokens;
  for (int layer = 0; layer < plan_.num_layers() && has_codes(); ++layer) {
    Paged& paged = paged_[index(layer)];
    for (std::size_t i = 0; i < num_tokens.size(); ++i) {
      const std::int64_t first = paged.first_rows[i];
      const std::int64_t count = quantised_tokens(plan_, num_tokens[i] - first, kv_dtype_);
      if (count == 0) {
        continue;
      }
      paged.codes->append(coder, layer, i,
                          paged.key.read_heads(i, first + sinks, count, plan_.head_dim),
                          paged.value.read_heads(i, first + sinks, count, plan_.head_dim));
      for (GpuRows* exact : {&paged.key, &paged.value}) {
        exact->write(i, first + count, exact->read(i, first, sinks).clone());
      }
      set_first_row(layer, i, first + count);
    }
  }
}

}  // namespace kvc
