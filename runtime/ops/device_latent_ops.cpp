// The operator torch.ops.kvconvert.attend_latents_device, as in device_ops.cpp. What it does stands in
// runtime/ops/device_latents.h.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <vector>

#include "runtime/ops/device_checks.h"
#include "runtime/ops/device_latents.h"
#include "runtime/ops/device_work.h"

namespace {

using kvc::device_numbers;
using kvc::ScalarType;
using kvc::Tensor;

// Contiguous, with these sizes.
void check_sizes(const Tensor& tensor, std::initializer_list<std::int64_t> sizes,
                 const char* name) {
  bool fits = tensor.is_contiguous() && tensor.dim() == static_cast<std::int64_t>(sizes.size());
  std::int64_t axis = 0;
  for (const std::int64_t size : sizes) {
    fits = fits && tensor.size(axis) == size;
    ++axis;
  }
  STD_TORCH_CHECK(fits, "kvconvert: attend_latents_device: ", name, ": expected other sizes");
}

const float* optional_floats(const Tensor& tensor, std::initializer_list<std::int64_t> sizes,
                             const char* name) {
  if (tensor.numel() == 0) {
    return nullptr;
  }
  check_sizes(tensor, sizes, name);
  return device_numbers<float>(tensor, ScalarType::Float, static_cast<std::int64_t>(sizes.size()),
                               name);
}

// shape: KV heads, rank, key rank, value rank, tokens of a page. numbers: scale, softcap, epsilon of the norm. factors: key
// projection, channels, angles, key offset, norm, value projection, value offset; the offsets and the norm may be empty.
void attend_latents_device(Tensor output, const Tensor& query, const Tensor& places,
                           const Tensor& past, const Tensor& first, std::int64_t most_past,
                           std::int64_t most_scratch, const std::vector<std::int64_t>& shape,
                           const std::vector<double>& numbers, const Tensor& cos, const Tensor& sin,
                           const std::vector<Tensor>& factors, const Tensor& exact_output,
                           const Tensor& exact_sums) {
  STD_TORCH_CHECK(
      shape.size() == 5 && numbers.size() == 3 && factors.size() == 7 && query.dim() == 3,
      "kvconvert: attend_latents_device: expected 5 sizes, 3 numbers, 7 factors and "
      "queries [tokens, heads, channels]");
  kvc::check_device({output, places, past, first, cos, sin, exact_output, exact_sums}, query,
                    "attend_latents_device");
  kvc::check_device(factors, query, "attend_latents_device");
  const std::int64_t count = query.size(0), heads = query.size(1), head_dim = query.size(2);
  const std::int64_t kv_heads = shape[0], rank = shape[1], key_rank = shape[2],
                     value_rank = shape[3];
  const kvc::DeviceElement element = kvc::device_element(query, "query");
  for (const Tensor* rows :
       std::initializer_list<const Tensor*>{&query, &output, &factors[0], &factors[5]}) {
    STD_TORCH_CHECK(rows->scalar_type() == query.scalar_type(),
                    "kvconvert: attend_latents_device: queries, outputs and projections are of "
                    "different types");
  }
  STD_TORCH_CHECK(factors[0].dim() == 4, "kvconvert: key projection: expected 4 dimensions");
  const std::int64_t pairs = factors[0].size(2), stride = factors[0].size(3);
  check_sizes(query, {count, heads, head_dim}, "query");
  check_sizes(output, {count, heads, head_dim}, "output");
  check_sizes(past, {count}, "past");
  check_sizes(first, {count}, "first");
  check_sizes(exact_output, {count, heads, head_dim}, "exact output");
  check_sizes(exact_sums, {count, heads}, "exact sums");
  check_sizes(factors[0], {kv_heads, 2, pairs, stride}, "key projection");
  check_sizes(factors[1], {kv_heads, 2, pairs}, "channels");
  check_sizes(factors[2], {kv_heads, pairs}, "angles");
  check_sizes(factors[5], {kv_heads, head_dim, value_rank}, "value projection");
  STD_TORCH_CHECK(places.dim() == 2 && places.size(0) == count && cos.dim() == 2 &&
                      sin.dim() == 2 && sin.size(0) == cos.size(0) && sin.size(1) == cos.size(1),
                  "kvconvert: attend_latents_device: expected places [tokens, pages], and angles "
                  "[positions, pairs]");
  STD_TORCH_CHECK(
      most_past <= places.size(1) * shape[4] && (cos.size(1) == 0 || most_past <= cos.size(0)),
      "kvconvert: attend_latents_device: ", most_past, " latents, more than pages or angles");
  if (count == 0) {
    return;
  }
  kvc::DeviceLatentAttention attention;
  kvc::RankAttention& latents = attention.latents;
  latents.query = query.data_ptr();
  latents.element = element;
  latents.latents = {.blocks = reinterpret_cast<const void* const*>(
                         device_numbers<std::int64_t>(places, ScalarType::Long, 2, "places")),
                     .max_blocks = places.size(1),
                     .block_rows = kvc::narrow(shape[4], "tokens of a page"),
                     .width = kvc::narrow(rank, "rank"),
                     .element = element};
  latents.key_rank = kvc::narrow(key_rank, "key rank");
  latents.value_rank = kvc::narrow(value_rank, "value rank");
  latents.value_column = kvc::narrow(rank - value_rank, "value column");
  latents.keys = {
      .pairs = {.num_pairs = kvc::narrow(pairs, "pairs"),
                .channels =
                    device_numbers<std::int32_t>(factors[1], ScalarType::Int, 3, "channels"),
                .angles = device_numbers<std::int32_t>(factors[2], ScalarType::Int, 2, "angles"),
                .offset = optional_floats(factors[3], {kv_heads, 2, pairs}, "key offset")},
      .projection = factors[0].data_ptr(),
      .rank_stride = kvc::narrow(stride, "key projection"),
      .norm = optional_floats(factors[4], {kv_heads, 2, pairs}, "norm"),
      .norm_epsilon = static_cast<float>(numbers[2])};
  latents.cos = device_numbers<float>(cos, ScalarType::Float, 2, "cos");
  latents.sin = device_numbers<float>(sin, ScalarType::Float, 2, "sin");
  latents.num_angles = kvc::narrow(cos.size(1), "angles");
  latents.num_rows = device_numbers<std::int32_t>(past, ScalarType::Int, 1, "past");
  latents.first_rows = device_numbers<std::int32_t>(first, ScalarType::Int, 1, "first");
  latents.num_sequences = kvc::narrow(count, "queries");
  latents.num_heads = kvc::narrow(heads, "heads");
  latents.num_kv_heads = kvc::narrow(kv_heads, "KV heads");
  latents.head_dim = kvc::narrow(head_dim, "channels");
  latents.scale = static_cast<float>(numbers[0]);
  latents.softcap = static_cast<float>(numbers[1]);
  attention.values = {.projection = factors[5].data_ptr(),
                      .element = element,
                      .rank = latents.value_rank,
                      .rank_stride = latents.value_rank,
                      .offset = optional_floats(factors[6], {kv_heads, head_dim}, "value offset")};
  attention.exact.max = device_numbers<float>(exact_sums, ScalarType::Float, 2, "exact sums");
  attention.exact.output =
      device_numbers<float>(exact_output, ScalarType::Float, 3, "exact output");
  attention.exact.num_parts = 1;
  attention.output = output.data_ptr();
  attention.most_rows = kvc::narrow(most_past, "latents");
  const int multiprocessors = kvc::device_multiprocessors(kvc::device_of(query));
  kvc::queue_in_parts(latents.num_sequences, most_scratch, query,
                      [&](int from, int some, kvc::DeviceScratch& scratch) {
                        return attention.part(from, some).program(multiprocessors, scratch);
                      });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(kvconvert, m) {
  m.def(
      "attend_latents_device(Tensor(a!) output, Tensor query, Tensor places, Tensor past, Tensor "
      "first, int most_past, int most_scratch, int[] shape, float[] numbers, Tensor cos, Tensor "
      "sin, Tensor[] factors, Tensor exact_output, Tensor exact_sums) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CompositeExplicitAutograd, m) {
  m.impl("attend_latents_device", TORCH_BOX(&attend_latents_device));
}
