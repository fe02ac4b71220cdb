// The operators torch.ops.kvconvert.attend_latents and join_exact, as in torch_ops.cpp. What each does stands in
// runtime/ops/latent_attention.h; tensors are checked here.
#include "runtime/ops/latent_attention.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "runtime/ops/tensor_checks.h"

namespace {

using kvc::ScalarType;
using kvc::Tensor;

static_assert(sizeof(kvc::RowSpan) == 2 * sizeof(std::int64_t));

kvc::LatentQueries queries_of(const Tensor& query, std::int64_t num_kv_heads, double scale,
                              double softcap) {
  STD_TORCH_CHECK(
      query.dim() == 3 && num_kv_heads > 0 && query.size(1) % num_kv_heads == 0 &&
          query.size(2) > 0,
      "kvconvert: latents: expected queries [sequences, heads, head_dim] of a multiple of ",
      num_kv_heads, " heads");
  const std::int64_t count = query.size(0), heads = query.size(1), head_dim = query.size(2);
  return {.query = kvc::head_rows(query, count, heads, head_dim, "query"),
          .count = count,
          .num_heads = heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .scale = static_cast<float>(scale),
          .softcap = static_cast<float>(softcap)};
}

// [count, rows, width]; more dimensions behind are parts of the width.
kvc::SequenceRows sequence_rows(const Tensor& rows, std::int64_t count, std::int64_t width,
                                const char* name) {
  std::int64_t neighbours = 1;
  bool dense = rows.is_cpu() && rows.dim() >= 3 && rows.size(0) == count;
  for (std::int64_t axis = rows.dim() - 1; dense && axis >= 2; --axis) {
    dense = rows.stride(axis) == neighbours || rows.size(axis) == 1;
    neighbours *= rows.size(axis);
  }
  STD_TORCH_CHECK(dense && neighbours == width && (rows.size(1) <= 1 || rows.stride(1) == width),
                  "kvconvert: ", name, ": expected dense rows of ", width, " numbers, of ", count,
                  " sequences on the CPU");
  return {rows.data_ptr(), kvc::element_of(rows, name), rows.stride(0), rows.size(1), width};
}

// int64 [count, spans, 2], within `rows`.
const kvc::RowSpan* spans_of(const Tensor& spans, std::int64_t count, std::int64_t each,
                             std::int64_t rows) {
  const auto* numbers = kvc::numbers<std::int64_t>(spans, ScalarType::Long, 3, "spans");
  STD_TORCH_CHECK(spans.size(0) == count && spans.size(1) == each && spans.size(2) == 2,
                  "kvconvert: spans: expected [", count, ", ", each, ", 2]");
  const auto* span = reinterpret_cast<const kvc::RowSpan*>(numbers);
  for (std::int64_t i = 0; i < count * each; ++i) {
    STD_TORCH_CHECK(span[i].first >= 0 && span[i].last <= rows, "kvconvert: spans: rows ",
                    span[i].first, " to ", span[i].last, " of ", rows);
  }
  return span;
}

float* sums_of(const Tensor& sums, std::int64_t count, std::int64_t rows, std::int64_t width,
               const char* name) {
  kvc::floats(sums, 3, name);
  STD_TORCH_CHECK(sums.size(0) == count && sums.size(1) == rows && sums.size(2) == width,
                  "kvconvert: ", name, ": expected [", count, ", ", rows, ", ", width, "]");
  return static_cast<float*>(sums.data_ptr());
}

void attend_latents(Tensor sums, Tensor scales, const Tensor& query, const Tensor& keys,
                    const Tensor& latents, const Tensor& spans, std::int64_t first,
                    std::int64_t first_position, std::int64_t num_kv_heads, const Tensor& cos,
                    const Tensor& sin, double scale, double softcap) {
  const kvc::LatentQueries queries = queries_of(query, num_kv_heads, scale, softcap);
  const std::int64_t count = queries.count, heads = queries.num_heads;
  STD_TORCH_CHECK(latents.dim() == 3 && sums.dim() == 3 && sums.size(2) <= latents.size(2),
                  "kvconvert: attend_latents: expected latents [sequences, tokens, rank], and sums "
                  "of at most as many numbers");
  kvc::LatentPart part{.latents = sequence_rows(latents, count, latents.size(2), "latents"),
                       .keys = sequence_rows(keys, count, num_kv_heads * queries.head_dim, "keys"),
                       .first = first,
                       .first_position = first_position,
                       .rank = sums.size(2),
                       .seen = spans_of(spans, count, 1, latents.size(1)),
                       .rope = {.cos = kvc::floats(cos, 2, "cos"),
                                .sin = kvc::floats(sin, 2, "sin"),
                                .num_pairs = cos.size(1)}};
  STD_TORCH_CHECK(first >= 0 && first <= part.latents.rows - part.keys.rows &&
                      first_position >= 0 && sin.size(0) == cos.size(0) &&
                      sin.size(1) == cos.size(1) && 2 * cos.size(1) <= queries.head_dim &&
                      (cos.size(1) == 0 || first_position <= cos.size(0) - part.keys.rows),
                  "kvconvert: attend_latents: ", part.keys.rows, " keys from latent ", first,
                  " of ", part.latents.rows, " at position ", first_position, ", and angles [",
                  cos.size(0), ", ", cos.size(1), "]");
  kvc::attend_latents(queries, part, sums_of(sums, count, heads, part.rank, "sums"),
                      sums_of(scales, count, 2, heads, "scales"), kvc::run_parallel);
}

void join_exact(Tensor output, const Tensor& query, const Tensor& values, const Tensor& scales,
                const Tensor& exact_keys, const Tensor& exact_values, const Tensor& spans,
                double scale, double softcap) {
  STD_TORCH_CHECK(
      exact_keys.dim() == 4 && exact_values.dim() == 4 &&
          exact_values.size(1) == exact_keys.size(1),
      "kvconvert: join_exact: expected as many keys and values [sequences, tokens, heads, "
      "head_dim]");
  const kvc::LatentQueries queries = queries_of(query, exact_keys.size(2), scale, softcap);
  const std::int64_t count = queries.count, heads = queries.num_heads, head_dim = queries.head_dim;
  const std::int64_t width = queries.num_kv_heads * head_dim;
  const float* of_latents = sums_of(scales, count, 2, heads, "scales");
  const kvc::ExactRows rows{.keys = sequence_rows(exact_keys, count, width, "exact keys"),
                            .values = sequence_rows(exact_values, count, width, "exact values"),
                            .seen = spans_of(spans, count, 2, exact_keys.size(1))};
  for (std::int64_t i = 0; i < count; ++i) {
    const kvc::RowSpan* seen = rows.seen + 2 * i;
    STD_TORCH_CHECK(of_latents[2 * heads * i] > -INFINITY || seen[0].first < seen[0].last ||
                        seen[1].first < seen[1].last,
                    "kvconvert: join_exact: query ", i, " sees no token");
  }
  kvc::join_exact(queries, rows, sums_of(values, count, heads, head_dim, "values"), of_latents,
                  kvc::head_rows(output, count, heads, head_dim, "output"), kvc::run_parallel);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(kvconvert, m) {
  m.def(
      "attend_latents(Tensor(a!) sums, Tensor(b!) scales, Tensor query, Tensor keys, Tensor "
      "latents, "
      "Tensor spans, int first, int first_position, int num_kv_heads, Tensor cos, Tensor sin, "
      "float "
      "scale, float softcap) -> ()");
  m.def(
      "join_exact(Tensor(a!) output, Tensor query, Tensor values, Tensor scales, Tensor "
      "exact_keys, "
      "Tensor exact_values, Tensor spans, float scale, float softcap) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CPU, m) {
  m.impl("attend_latents", TORCH_BOX(&attend_latents));
  m.impl("join_exact", TORCH_BOX(&join_exact));
}
