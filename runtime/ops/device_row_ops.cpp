// The operator torch.ops.kvconvert.attend_rows_device, as in device_ops.cpp: attention over rows in an engine's pages, or over sums
// of two layers' rows, by the kernels of fused layers (runtime/kernels/cuda/attention_dense.h).
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <vector>

#include "runtime/ops/device_checks.h"
#include "runtime/ops/device_sums.h"
#include "runtime/ops/device_work.h"

namespace {

using kvc::DenseAttention;
using kvc::device_numbers;
using kvc::narrow;
using kvc::ScalarType;
using kvc::Tensor;

// places: addresses of the sources' rows of keys, then of values, in each page of a sequence.
void set_sources(const Tensor& places, const std::vector<Tensor>& factors, int page_tokens,
                 DenseAttention& attention) {
  const std::int64_t sources = places.size(0) / 2, heads = attention.num_kv_heads;
  STD_TORCH_CHECK(sources >= 1 && sources <= 2 && places.size(0) == 2 * sources &&
                      places.size(1) == attention.num_sequences,
                  "kvconvert: attend_rows_device: expected places [2 or 4, queries, pages]");
  STD_TORCH_CHECK(factors.empty() || static_cast<std::int64_t>(factors.size()) == 2 * sources,
                  "kvconvert: attend_rows_device: ", factors.size(), " factors, expected ",
                  2 * sources, " or none");
  const auto* const* blocks = reinterpret_cast<const void* const*>(
      device_numbers<std::int64_t>(places, ScalarType::Long, 3, "places"));
  const auto rows = [&](std::int64_t part) {
    return kvc::DeviceRows{.blocks = blocks + part * places.size(1) * places.size(2),
                           .max_blocks = places.size(2),
                           .block_rows = page_tokens,
                           .width = narrow(heads * attention.head_dim, "numbers of a row"),
                           .element = attention.element};
  };
  const auto factor = [&](std::int64_t part) -> const float* {
    if (factors.empty()) {
      return nullptr;
    }
    const Tensor& own = factors[static_cast<std::size_t>(part)];
    STD_TORCH_CHECK(own.dim() == 2 && own.size(0) == heads && own.size(1) == attention.head_dim,
                    "kvconvert: factors: expected [", heads, ", ", attention.head_dim, "]");
    return device_numbers<float>(own, ScalarType::Float, 2, "factors");
  };
  attention.num_sources = static_cast<int>(sources);
  for (std::int64_t source = 0; source < sources; ++source) {
    attention.rows[source] = {.key = rows(source),
                              .value = rows(sources + source),
                              .key_factor = factor(source),
                              .value_factor = factor(sources + source)};
  }
}

kvc::DeviceProgram program_of(DenseAttention attention, int most_tokens, int multiprocessors,
                              void* output, kvc::DeviceScratch& scratch) {
  const int parts = kvc::attention_parts(
      multiprocessors, attention.num_sequences * attention.num_kv_heads, most_tokens);
  attention.partials = kvc::take_partials(
      parts, static_cast<std::int64_t>(attention.num_sequences) * attention.num_heads,
      attention.head_dim, scratch);
  return {kvc::NumberAttention{attention},
          kvc::CombinePartials{.sources = {attention.partials},
                               .num_sources = 1,
                               .num_sequences = attention.num_sequences,
                               .num_heads = attention.num_heads,
                               .width = attention.head_dim,
                               .output = output,
                               .element = attention.element}};
}

// One query token of each sequence, which sees rows from first on (empty: all), its own included. shape: KV heads, tokens of a page.
// factors: of keys, then of values, of each source; none: rows are read as they are.
void attend_rows_device(Tensor output, const Tensor& query, const Tensor& places,
                        const Tensor& lens, const Tensor& first, std::int64_t max_tokens,
                        const std::vector<std::int64_t>& shape, double scale, double softcap,
                        const std::vector<Tensor>& factors) {
  STD_TORCH_CHECK(shape.size() == 2 && query.dim() == 3 && places.dim() == 3,
                  "kvconvert: attend_rows_device: expected 2 sizes, queries [tokens, heads, "
                  "channels] and places of 3 dimensions");
  const std::int64_t count = query.size(0);
  kvc::check_device({output, places, lens, first}, query, "attend_rows_device");
  kvc::check_device(factors, query, "attend_rows_device");
  for (const Tensor* rows : std::initializer_list<const Tensor*>{&query, &output}) {
    STD_TORCH_CHECK(rows->dim() == 3 && rows->is_contiguous() && rows->size(0) == count &&
                        rows->size(1) == query.size(1) && rows->size(2) == query.size(2) &&
                        rows->scalar_type() == query.scalar_type(),
                    "kvconvert: attend_rows_device: expected contiguous queries and outputs alike");
  }
  STD_TORCH_CHECK(lens.dim() == 1 && lens.size(0) == count &&
                      (first.numel() == 0 || (first.dim() == 1 && first.size(0) == count)) &&
                      max_tokens > 0 && max_tokens <= places.size(2) * shape[1],
                  "kvconvert: attend_rows_device: ", count, " queries, ", lens.size(0),
                  " lengths, at most ", max_tokens, " tokens in ", places.size(2), " pages");
  if (count == 0) {
    return;
  }
  DenseAttention attention{
      .query = query.data_ptr(),
      .element = kvc::device_element(query, "query"),
      .rows = {},
      .num_rows = device_numbers<std::int32_t>(lens, ScalarType::Int, 1, "lengths"),
      .num_sequences = narrow(count, "queries"),
      .num_heads = narrow(query.size(1), "heads"),
      .num_kv_heads = narrow(shape[0], "KV heads"),
      .head_dim = narrow(query.size(2), "channels"),
      .scale = static_cast<float>(scale),
      .softcap = static_cast<float>(softcap)};
  if (first.numel() > 0) {
    attention.first_rows = device_numbers<std::int32_t>(first, ScalarType::Int, 1, "first tokens");
  }
  set_sources(places, factors, narrow(shape[1], "tokens of a page"), attention);
  const int multiprocessors = kvc::device_multiprocessors(kvc::device_of(query));
  kvc::queue_whole(query, [&](kvc::DeviceScratch& scratch) {
    return program_of(attention, narrow(max_tokens, "tokens"), multiprocessors, output.data_ptr(),
                      scratch);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(kvconvert, m) {
  m.def(
      "attend_rows_device(Tensor(a!) output, Tensor query, Tensor places, Tensor lens, Tensor "
      "first, int max_tokens, int[] shape, float scale, float softcap, Tensor[] factors) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CompositeExplicitAutograd, m) {
  m.impl("attend_rows_device", TORCH_BOX(&attend_rows_device));
}
