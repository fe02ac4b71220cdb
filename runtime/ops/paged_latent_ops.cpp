// The operators torch.ops.kvconvert.*_latents of an engine's pages, as in torch_ops.cpp. What each does stands in
// runtime/ops/paged_latents.h; tensors are checked here.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/ops/handles.h"
#include "runtime/ops/paged_latents.h"
#include "runtime/ops/tensor_checks.h"

namespace {

using kvc::PagedLatents;
using kvc::ScalarType;
using kvc::Tensor;

// Angles stay where the engine has them.
struct OpenLatents {
  std::optional<PagedLatents> latents;
  Tensor cos, sin;
};

kvc::Handles<OpenLatents>& registry() {
  static kvc::Handles<OpenLatents> all("latents");
  return all;
}

const float* matrix(const Tensor& factor, std::int64_t rows, std::int64_t columns,
                    const char* name) {
  const float* numbers = kvc::floats(factor, 2, name);
  STD_TORCH_CHECK(factor.size(0) == rows && factor.size(1) == columns, "kvconvert: ", name,
                  ": expected [", rows, ", ", columns, "], found [", factor.size(0), ", ",
                  factor.size(1), "]");
  return numbers;
}

// Null without elements.
const float* vector_or_null(const Tensor& factor, std::int64_t count, const char* name) {
  if (factor.numel() == 0) {
    return nullptr;
  }
  const float* numbers = kvc::floats(factor, 1, name);
  STD_TORCH_CHECK(factor.size(0) == count, "kvconvert: ", name, ": expected ", count,
                  " numbers, found ", factor.size(0));
  return numbers;
}

// shape: query heads, KV heads, head_dim, rank, key_rank, value_rank, window. scale: of scores, their soft cap, epsilon of the
// norm. factors: key, value, and of no elements where there are none: key offset, value offset, norm.
std::int64_t open_latents(const std::vector<std::int64_t>& shape, const Tensor& scale,
                          const Tensor& cos, const Tensor& sin,
                          const std::vector<Tensor>& factors) {
  STD_TORCH_CHECK(shape.size() == 7 && factors.size() == 5 && scale.numel() == 3,
                  "kvconvert: open_latents: a description of another length");
  const float* scales = kvc::floats(scale, 1, "scale");
  const PagedLatents::Shape of{.num_heads = shape[0],
                               .num_kv_heads = shape[1],
                               .head_dim = shape[2],
                               .rank = shape[3],
                               .key_rank = shape[4],
                               .value_rank = shape[5],
                               .scale = scales[0],
                               .softcap = scales[1],
                               .window = shape[6],
                               .rope = kvc::rope_angles(cos, sin, shape[2]),
                               .num_positions = cos.size(0)};
  STD_TORCH_CHECK(of.num_kv_heads > 0 && of.num_heads > 0 && of.num_heads % of.num_kv_heads == 0 &&
                      of.head_dim > 0 && of.window >= 0,
                  "kvconvert: open_latents: expected a multiple of ", of.num_kv_heads,
                  " heads, found ", of.num_heads);
  STD_TORCH_CHECK(
      of.key_rank > 0 && of.value_rank > 0 && std::max(of.key_rank, of.value_rank) <= of.rank,
      "kvconvert: open_latents: ", of.key_rank, " numbers of keys and ", of.value_rank,
      " of values, expected 1 to ", of.rank);
  const std::int64_t kv_dim = of.num_kv_heads * of.head_dim;
  const auto opened = std::make_shared<OpenLatents>(OpenLatents{{}, cos, sin});
  opened->latents.emplace(
      of, PagedLatents::Factors{.key = matrix(factors[0], kv_dim, of.key_rank, "key factor"),
                                .value = matrix(factors[1], kv_dim, of.value_rank, "value factor"),
                                .key_offset = vector_or_null(factors[2], kv_dim, "key offset"),
                                .value_offset = vector_or_null(factors[3], kv_dim, "value offset"),
                                .key_norm = vector_or_null(factors[4], of.head_dim, "key norm"),
                                .norm_epsilon = scales[2]});
  return registry().add(opened);
}

void close_latents(std::int64_t handle) { registry().remove(handle); }

// pages [pages, numbers]; padding may follow the rows of a page.
kvc::LatentPages latent_pages(const Tensor& pages, const PagedLatents& latents) {
  const std::int64_t rank = latents.shape().rank;
  STD_TORCH_CHECK(
      pages.is_cpu() && pages.dim() == 2 && pages.stride(1) == 1 && pages.size(1) >= rank,
      "kvconvert: pages: expected [pages, numbers] of at least ", rank, " numbers on the CPU");
  const kvc::KvElement element = kvc::element_of(pages, "pages");
  return {.data = static_cast<std::uint8_t*>(pages.data_ptr()),
          .element = element,
          .stride = pages.stride(0) * kvc::element_bits(element) / 8,
          .count = pages.size(0),
          .page_tokens = pages.size(1) / rank};
}

void store_latents(std::int64_t handle, Tensor pages, const Tensor& slots, const Tensor& rows) {
  const auto opened = registry().find(handle);
  const PagedLatents& latents = *opened->latents;
  const kvc::LatentPages memory = latent_pages(pages, latents);
  const auto* slot = kvc::numbers<std::int64_t>(slots, ScalarType::Long, 1, "slots");
  const std::int64_t count = slots.size(0), rank = latents.shape().rank;
  STD_TORCH_CHECK(rows.is_cpu() && rows.dim() == 2 && rows.size(0) == count &&
                      rows.size(1) == rank && rows.stride(1) == 1,
                  "kvconvert: store_latents: expected latents [", count, ", ", rank,
                  "] on the CPU with neighbouring numbers");
  for (std::int64_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(slot[i] < memory.count * memory.page_tokens, "kvconvert: store_latents: slot ",
                    slot[i], " is beyond the pages");
  }
  latents.store(memory, slot, count,
                {rows.data_ptr(), kvc::element_of(rows, "latents"), rows.stride(0), 0});
}

void attend_paged_latents(std::int64_t handle, Tensor output, const Tensor& query,
                          const Tensor& pages, const Tensor& block_table, const Tensor& past,
                          const Tensor& starts, const Tensor& keys, const Tensor& values) {
  const auto opened = registry().find(handle);
  const PagedLatents& latents = *opened->latents;
  const PagedLatents::Shape& shape = latents.shape();
  const kvc::LatentPages memory = latent_pages(pages, latents);
  const std::int64_t count = past.size(0), rows = query.size(0);
  const PagedLatents::Sequences sequences{
      .pages = kvc::page_numbers(block_table, count),
      .stride = block_table.stride(0),
      .count = count,
      .past = kvc::numbers<std::int32_t>(past, ScalarType::Int, 1, "past tokens"),
      .starts = kvc::numbers<std::int32_t>(starts, ScalarType::Int, 1, "starts")};
  STD_TORCH_CHECK(
      starts.size(0) == count + 1 && sequences.starts[0] == 0 && sequences.starts[count] == rows,
      "kvconvert: attend_paged_latents: ", rows, " queries of ", count,
      " sequences, whose starts do not go from 0 to ", rows);
  const std::int64_t most = block_table.size(1) * memory.page_tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t tokens = sequences.past[i];
    const std::int64_t queries = sequences.starts[i + 1] - sequences.starts[i];
    STD_TORCH_CHECK(
        queries >= 0 && tokens >= 0 && tokens <= most && tokens + queries <= shape.num_positions,
        "kvconvert: attend_paged_latents: ", queries, " queries behind ", tokens,
        " tokens, expected at most ", most, " tokens in pages and ", shape.num_positions,
        " positions");
    kvc::check_pages(sequences.pages + i * sequences.stride, queries == 0 ? 0 : tokens,
                     memory.page_tokens, memory.count);
  }
  latents.attend(memory, sequences,
                 {kvc::head_rows(keys, rows, shape.num_kv_heads, shape.head_dim, "keys"),
                  kvc::head_rows(values, rows, shape.num_kv_heads, shape.head_dim, "values")},
                 kvc::head_rows(query, rows, shape.num_heads, shape.head_dim, "query"),
                 kvc::head_rows(output, rows, shape.num_heads, shape.head_dim, "output"),
                 kvc::run_parallel);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(kvconvert, m) {
  m.def("open_latents(int[] shape, Tensor scale, Tensor cos, Tensor sin, Tensor[] factors) -> int");
  m.def("close_latents(int handle) -> ()");
  m.def("store_latents(int handle, Tensor(a!) pages, Tensor slots, Tensor rows) -> ()");
  m.def(
      "attend_paged_latents(int handle, Tensor(a!) output, Tensor query, Tensor pages, Tensor "
      "block_table, Tensor past, Tensor starts, Tensor keys, Tensor values) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CPU, m) {
  m.impl("open_latents", TORCH_BOX(&open_latents));
  m.impl("store_latents", TORCH_BOX(&store_latents));
  m.impl("attend_paged_latents", TORCH_BOX(&attend_paged_latents));
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CompositeExplicitAutograd, m) {
  m.impl("close_latents", TORCH_BOX(&close_latents));
}
