// The operators torch.ops.kvconvert.*_device: those of torch_ops.cpp in GPU memory. What each does stands in
// runtime/ops/device_codes.h. Numbers in GPU memory are not checked here, as that would wait for the GPU: kernels skip slots
// and pages that there are none of.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "runtime/ops/device_checks.h"
#include "runtime/ops/device_codes.h"
#include "runtime/ops/device_work.h"
#include "runtime/ops/handles.h"
#include "runtime/ops/open_codes.h"

namespace {

using kvc::DeviceCodes;
using kvc::ScalarType;
using kvc::Tensor;

kvc::Handles<DeviceCodes>& registry() {
  static kvc::Handles<DeviceCodes> all("codes");
  return all;
}

std::int64_t open_device(const std::vector<std::int64_t>& shape, const Tensor& scale,
                         const Tensor& cos, const Tensor& sin,
                         const std::vector<std::int64_t>& blocks,
                         const std::vector<Tensor>& factors) {
  const kvc::CodesDescription described =
      kvc::describe_codes(shape, scale, cos, sin, blocks, factors);
  auto codes = std::make_shared<DeviceCodes>(described.shape, described.blocks);
  STD_TORCH_CHECK(codes->image().refusal.empty(), "kvconvert: GPUs do not serve ",
                  codes->image().refusal, "; convert with `kvconvert --for vllm --form ",
                  codes->image().are_met ? "keys" : "rotated", "`, or run on the CPU");
  return registry().add(codes);
}

void close_device(std::int64_t handle) { registry().remove(handle); }

std::int64_t device_image_bytes(std::int64_t handle) {
  return static_cast<std::int64_t>(registry().find(handle)->image().factors.bytes().size());
}

void device_image(std::int64_t handle, Tensor image) {
  const auto codes = registry().find(handle);
  const auto* bytes = kvc::numbers<std::uint8_t>(image, ScalarType::Byte, 1, "image");
  const std::vector<std::uint8_t>& factors = codes->image().factors.bytes();
  STD_TORCH_CHECK(image.size(0) == static_cast<std::int64_t>(factors.size()),
                  "kvconvert: image: expected ", factors.size(), " bytes");
  std::copy(factors.begin(), factors.end(), const_cast<std::uint8_t*>(bytes));
}

void store_device(std::int64_t handle, const Tensor& image, const Tensor& cos, const Tensor& sin,
                  Tensor pages, const Tensor& slots, const Tensor& positions,
                  const std::vector<Tensor>& keys, const std::vector<Tensor>& values) {
  const auto codes = registry().find(handle);
  const auto num_layers = static_cast<std::size_t>(codes->shape().num_layers);
  const std::int64_t count = slots.size(0);
  STD_TORCH_CHECK(
      positions.size(0) == count && keys.size() == num_layers && values.size() == num_layers,
      "kvconvert: store: expected as many positions as slots, and keys and values of ", num_layers,
      " layers");
  kvc::check_device({image, cos, sin, slots, positions}, pages, "store");
  kvc::check_device(keys, pages, "store");
  kvc::check_device(values, pages, "store");
  const DeviceCodes::Memory memory = kvc::memory_of(*codes, image, cos, sin, pages, keys.front());
  std::vector<kvc::EngineRows> of_keys, of_values;
  for (std::size_t i = 0; i < num_layers; ++i) {
    of_keys.push_back(kvc::engine_rows(keys[i], count, *codes, memory.element, "keys"));
    of_values.push_back(kvc::engine_rows(values[i], count, *codes, memory.element, "values"));
  }
  if (count == 0) {
    return;
  }
  kvc::queue_whole(pages, [&](kvc::DeviceScratch& scratch) {
    return codes->store(
        memory, kvc::device_numbers<std::int64_t>(slots, ScalarType::Long, 1, "slots"),
        kvc::device_numbers<std::int64_t>(positions, ScalarType::Long, 1, "positions"),
        kvc::narrow(count, "tokens"), of_keys, of_values, scratch);
  });
}

void read_device(std::int64_t handle, std::int64_t layer, const Tensor& image, const Tensor& cos,
                 const Tensor& sin, const Tensor& pages, const Tensor& page_numbers,
                 std::int64_t first, Tensor keys, Tensor values) {
  const auto codes = registry().find(handle);
  const kvc::PagedCodes::Shape& shape = codes->shape();
  const std::int64_t count = keys.size(0);
  kvc::check_device({image, cos, sin, page_numbers, keys, values}, pages, "read");
  const DeviceCodes::Memory memory = kvc::memory_of(*codes, image, cos, sin, pages, keys);
  kvc::check_tokens(shape, layer, first, count,
                    page_numbers.size(0) * memory.pages.page_tiles * kvc::kTileTokens);
  for (const Tensor* rows : {&keys, &values}) {
    kvc::engine_rows(*rows, count, *codes, memory.element, "keys and values");
    STD_TORCH_CHECK(rows->is_contiguous(), "kvconvert: read: expected contiguous keys and values");
  }
  if (count > 0) {
    kvc::queue_program(codes->read(memory,
                                   kvc::device_numbers<std::int32_t>(page_numbers, ScalarType::Int,
                                                                     1, "page numbers"),
                                   kvc::narrow(first, "first"), kvc::narrow(count, "tokens"), layer,
                                   keys.data_ptr(), values.data_ptr()),
                       pages);
  }
}

// `sequences` from `first` on.
DeviceCodes::Sequences part_of(DeviceCodes::Sequences sequences, int first, int count) {
  sequences.pages += first * sequences.stride;
  sequences.tokens += first;
  sequences.open_numbers += first * sequences.exact_tiles;
  sequences.count = count;
  return sequences;
}

void attend_parts(const DeviceCodes& codes, const DeviceCodes::Memory& memory,
                  const DeviceCodes::Sequences& sequences, std::int64_t layer, const Tensor& query,
                  const Tensor& output, const Tensor& pages, std::int64_t most_scratch) {
  const int multiprocessors = kvc::device_multiprocessors(kvc::device_of(pages));
  const std::int64_t row = codes.shape().num_heads * codes.shape().head_dim * 2;  // bytes
  kvc::queue_in_parts(
      sequences.count, most_scratch, pages, [&](int first, int count, kvc::DeviceScratch& scratch) {
        return codes.attend(memory, part_of(sequences, first, count), layer,
                            static_cast<std::uint8_t*>(query.data_ptr()) + first * row,
                            static_cast<std::uint8_t*>(output.data_ptr()) + first * row,
                            multiprocessors, scratch);
      });
}

void attend_device(std::int64_t handle, std::int64_t layer, const Tensor& image, const Tensor& cos,
                   const Tensor& sin, Tensor output, const Tensor& query, const Tensor& pages,
                   const Tensor& block_table, const Tensor& tokens, std::int64_t max_tokens,
                   std::int64_t most_scratch, const Tensor& open_keys, const Tensor& open_values,
                   const Tensor& open_tiles) {
  const auto codes = registry().find(handle);
  const kvc::PagedCodes::Shape& shape = codes->shape();
  kvc::check_device(
      {image, cos, sin, output, query, block_table, tokens, open_keys, open_values, open_tiles},
      pages, "attend");
  const DeviceCodes::Memory memory = kvc::memory_of(*codes, image, cos, sin, pages, query);
  for (const Tensor* rows : std::initializer_list<const Tensor*>{&query, &output}) {
    STD_TORCH_CHECK(rows->dim() == 3 && rows->is_contiguous() && rows->size(0) == query.size(0) &&
                        rows->size(1) == shape.num_heads && rows->size(2) == shape.head_dim &&
                        kvc::device_element(*rows, "query and output") == memory.element,
                    "kvconvert: attend: expected contiguous queries and outputs [sequences, ",
                    shape.num_heads, ", ", shape.head_dim, "] of one type");
  }
  STD_TORCH_CHECK(layer >= 0 && layer < shape.num_layers, "kvconvert: attend: layer ", layer,
                  ", expected below ", shape.num_layers);
  if (query.size(0) == 0) {
    return;
  }
  DeviceCodes::Sequences sequences =
      kvc::sequences_of(*codes, memory, query, block_table, tokens, max_tokens);
  if (open_tiles.numel() > 0) {
    kvc::set_open_tiles(open_keys, open_values, open_tiles, *codes, memory.element, sequences);
  }
  attend_parts(*codes, memory, sequences, layer, query, output, pages, most_scratch);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(kvconvert, m) {
  m.def(
      "open_device(int[] shape, Tensor scale, Tensor cos, Tensor sin, int[] blocks, Tensor[] "
      "factors) -> int");
  m.def("close_device(int handle) -> ()");
  m.def("device_image_bytes(int handle) -> int");
  m.def("device_image(int handle, Tensor(a!) image) -> ()");
  m.def(
      "store_device(int handle, Tensor image, Tensor cos, Tensor sin, Tensor(a!) pages, Tensor "
      "slots, Tensor positions, Tensor[] keys, Tensor[] values) -> ()");
  m.def(
      "read_device(int handle, int layer, Tensor image, Tensor cos, Tensor sin, Tensor pages, "
      "Tensor page_numbers, int first, Tensor(a!) keys, Tensor(b!) values) -> ()");
  m.def(
      "attend_device(int handle, int layer, Tensor image, Tensor cos, Tensor sin, Tensor(a!) "
      "output, Tensor query, Tensor pages, Tensor block_table, Tensor tokens, int max_tokens, "
      "int most_scratch, Tensor open_keys, Tensor open_values, Tensor open_tiles) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CompositeExplicitAutograd, m) {
  m.impl("open_device", TORCH_BOX(&open_device));
  m.impl("close_device", TORCH_BOX(&close_device));
  m.impl("device_image_bytes", TORCH_BOX(&device_image_bytes));
  m.impl("device_image", TORCH_BOX(&device_image));
  m.impl("store_device", TORCH_BOX(&store_device));
  m.impl("read_device", TORCH_BOX(&read_device));
  m.impl("attend_device", TORCH_BOX(&attend_device));
}
