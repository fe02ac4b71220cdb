// The operator torch.ops.kvconvert.attend_paged_rows of an engine's pages, as in torch_ops.cpp. What it does stands in
// runtime/ops/paged_rows.h; tensors are checked here.
#include "runtime/ops/paged_rows.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/ops/tensor_checks.h"

namespace {

using kvc::ScalarType;
using kvc::Tensor;

// rows [pages, page_tokens, num_kv_heads, head_dim], dense in a page; factors [num_kv_heads, head_dim], or of no elements: ones.
kvc::RowPages row_pages(const Tensor& rows, const Tensor& factors, const Tensor& first) {
  const std::int64_t heads = first.size(2), head_dim = first.size(3);
  bool fits = rows.is_cpu() && rows.dim() == 4 && rows.stride(3) == 1 &&
              rows.stride(2) == head_dim && rows.stride(1) == heads * head_dim;
  for (std::int64_t axis = 0; fits && axis < 4; ++axis) {
    fits = rows.size(axis) == first.size(axis);
  }
  STD_TORCH_CHECK(fits, "kvconvert: attend_paged_rows: expected rows [", first.size(0), ", ",
                  first.size(1), ", ", heads, ", ", head_dim, "] on the CPU, dense in a page");
  const float* numbers = nullptr;
  if (factors.numel() != 0) {
    numbers = kvc::floats(factors, 2, "factors");
    STD_TORCH_CHECK(factors.size(0) == heads && factors.size(1) == head_dim,
                    "kvconvert: attend_paged_rows: expected factors [", heads, ", ", head_dim, "]");
  }
  const kvc::KvElement element = kvc::element_of(rows, "rows");
  return {.data = static_cast<const std::uint8_t*>(rows.data_ptr()),
          .element = element,
          .stride = rows.stride(0) * kvc::element_bits(element) / 8,
          .factors = numbers};
}

void attend_paged_rows(Tensor output, const Tensor& query, const std::vector<Tensor>& keys,
                       const std::vector<Tensor>& values, const std::vector<Tensor>& key_factors,
                       const std::vector<Tensor>& value_factors, const Tensor& block_table,
                       const Tensor& tokens, double scale, double softcap, std::int64_t window) {
  const std::size_t sources = keys.size();
  STD_TORCH_CHECK(
      (sources == 1 || sources == 2) && values.size() == sources && key_factors.size() == sources &&
          value_factors.size() == sources,
      "kvconvert: attend_paged_rows: expected keys, values and factors of one or two layers, "
      "found ",
      sources, " keys and ", values.size(), " values");
  const Tensor& first = keys[0];
  STD_TORCH_CHECK(
      query.dim() == 3 && first.dim() == 4 && first.size(2) > 0 && first.size(3) > 0 &&
          first.size(1) > 0 && query.size(1) > 0 && query.size(1) % first.size(2) == 0 &&
          query.size(2) == first.size(3) && window >= 0,
      "kvconvert: attend_paged_rows: expected queries [sequences, heads, head_dim] with a "
      "multiple of the keys' heads, and a window of at least 0");
  const std::int64_t count = query.size(0), page_tokens = first.size(1);
  kvc::PagedRowAttention attention{.num_heads = query.size(1),
                                   .num_kv_heads = first.size(2),
                                   .head_dim = first.size(3),
                                   .page_tokens = page_tokens,
                                   .scale = static_cast<float>(scale),
                                   .softcap = static_cast<float>(softcap),
                                   .window = window};
  for (std::size_t i = 0; i < sources; ++i) {
    attention.sources.push_back(
        {row_pages(keys[i], key_factors[i], first), row_pages(values[i], value_factors[i], first)});
  }
  const kvc::PagedCodes::Sequences sequences =
      kvc::query_sequences(block_table, tokens, count, page_tokens, first.size(0), INT64_MAX);
  const auto heads = [&](const Tensor& rows, const char* name) {
    return kvc::head_rows(rows, count, attention.num_heads, attention.head_dim, name);
  };
  attention.attend(sequences, heads(query, "query"), heads(output, "output"), kvc::run_parallel);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(kvconvert, m) {
  m.def(
      "attend_paged_rows(Tensor(a!) output, Tensor query, Tensor[] keys, Tensor[] values, Tensor[] "
      "key_factors, Tensor[] value_factors, Tensor block_table, Tensor tokens, float scale, float "
      "softcap, int window) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CPU, m) {
  m.impl("attend_paged_rows", TORCH_BOX(&attend_paged_rows));
}
