// The operators torch.ops.kvconvert.*, through torch's stable ABI: the library loads into every torch from 2.11 on.
// What each does stands in runtime/ops/paged_codes.h; tensors are checked here.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

#include "runtime/ops/open_codes.h"
#include "runtime/ops/tensor_checks.h"

namespace {

using kvc::ScalarType;
using kvc::Tensor;

std::int64_t tile_bytes(std::int64_t handle) {
  return kvc::find_codes(handle)->codes->tile_bytes();
}

void store(std::int64_t handle, Tensor pages, const Tensor& slots, const Tensor& positions,
           const std::vector<Tensor>& keys, const std::vector<Tensor>& values) {
  const auto opened = kvc::find_codes(handle);
  const kvc::PagedCodes& codes = *opened->codes;
  const kvc::PagedCodes::Shape& shape = codes.shape();
  const kvc::PageMemory memory = kvc::page_memory(pages, codes);
  const auto* slot = kvc::numbers<std::int64_t>(slots, ScalarType::Long, 1, "slots");
  const auto* position = kvc::numbers<std::int64_t>(positions, ScalarType::Long, 1, "positions");
  const std::int64_t count = slots.size(0);
  const auto num_layers = static_cast<std::size_t>(shape.num_layers);
  STD_TORCH_CHECK(
      positions.size(0) == count && keys.size() == num_layers && values.size() == num_layers,
      "kvconvert: store: expected as many positions as slots, and keys and values of ", num_layers,
      " layers");
  for (std::int64_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(slot[i] < memory.count * memory.page_tiles * kvc::kTileTokens,
                    "kvconvert: store: slot ", slot[i], " is beyond the pages");
    STD_TORCH_CHECK(position[i] >= 0 && position[i] < shape.num_positions,
                    "kvconvert: store: position ", position[i], ", expected below ",
                    shape.num_positions);
  }
  std::vector<kvc::PagedRows> layers;
  for (std::size_t i = 0; i < num_layers; ++i) {
    layers.push_back(
        {kvc::head_rows(keys[i], count, shape.num_kv_heads, shape.head_dim, "keys"),
         kvc::head_rows(values[i], count, shape.num_kv_heads, shape.head_dim, "values")});
  }
  codes.store(memory, slot, position, count, layers, kvc::run_parallel);
}

void attend(std::int64_t handle, std::int64_t layer, Tensor output, const Tensor& query,
            const Tensor& pages, const Tensor& block_table, const Tensor& tokens,
            const Tensor& open_keys, const Tensor& open_values, const Tensor& open_tiles) {
  const auto opened = kvc::find_codes(handle);
  const kvc::PagedCodes& codes = *opened->codes;
  const kvc::PagedCodes::Shape& shape = codes.shape();
  const kvc::PageMemory memory = kvc::page_memory(pages, codes);
  STD_TORCH_CHECK(layer >= 0 && layer < shape.num_layers,
                  "kvconvert: attend: expected a layer below ", shape.num_layers);
  const kvc::PagedCodes::Sequences sequences =
      kvc::query_sequences(block_table, tokens, query.size(0), memory.page_tiles * kvc::kTileTokens,
                           memory.count, shape.num_positions);
  codes.attend(
      memory, sequences,
      kvc::open_tiles(open_keys, open_values, open_tiles, sequences.tokens, sequences.count, shape),
      layer, kvc::head_rows(query, sequences.count, shape.num_heads, shape.head_dim, "query"),
      kvc::head_rows(output, sequences.count, shape.num_heads, shape.head_dim, "output"),
      kvc::run_parallel);
}

void read_tokens(std::int64_t handle, std::int64_t layer, const Tensor& pages,
                 const Tensor& page_numbers, std::int64_t first, Tensor keys, Tensor values) {
  const auto opened = kvc::find_codes(handle);
  const kvc::PagedCodes& codes = *opened->codes;
  const kvc::PagedCodes::Shape& shape = codes.shape();
  const kvc::PageMemory memory = kvc::page_memory(pages, codes);
  const auto* page = kvc::numbers<std::int32_t>(page_numbers, ScalarType::Int, 1, "page numbers");
  const std::int64_t count = keys.size(0), page_tokens = memory.page_tiles * kvc::kTileTokens;
  kvc::check_tokens(shape, layer, first, count, page_numbers.size(0) * page_tokens);
  for (std::int64_t i = first / page_tokens; i * page_tokens < first + count; ++i) {
    STD_TORCH_CHECK(page[i] >= 0 && page[i] < memory.count, "kvconvert: read: page ", page[i],
                    ", expected 0 to ", memory.count - 1);
  }
  codes.read(memory, page, first, count, layer,
             {kvc::head_rows(keys, count, shape.num_kv_heads, shape.head_dim, "keys"),
              kvc::head_rows(values, count, shape.num_kv_heads, shape.head_dim, "values")},
             kvc::run_parallel);
}

void attend_prompt(Tensor output, const Tensor& query, std::int64_t length,
                   const Tensor& coded_keys, const Tensor& coded_values, const Tensor& exact_keys,
                   const Tensor& exact_values, double scale, double softcap, std::int64_t window,
                   bool exact_step, std::int64_t exact_tiles) {
  const kvc::PromptAttention params = kvc::prompt_attention_of(
      output, query, length, {&coded_keys, &coded_values}, {&exact_keys, &exact_values},
      {scale, softcap}, window, exact_step, exact_tiles);
  const std::int64_t products = query.size(0) * params.num_heads * length * params.head_dim;
  const std::int64_t pieces = kvc::prompt_pieces(params);
  kvc::run_parallel(
      pieces, products < 1'000'000 ? pieces : 1,
      [&](std::int64_t first, std::int64_t last) { kvc::prompt_attention(params, first, last); });
}

}  // namespace

STABLE_TORCH_LIBRARY(kvconvert, m) {
  m.def(
      "open(int[] shape, Tensor scale, Tensor cos, Tensor sin, int[] blocks, Tensor[] factors) -> "
      "int");
  m.def("close(int handle) -> ()");
  m.def("tile_bytes(int handle) -> int");
  m.def(
      "store(int handle, Tensor(a!) pages, Tensor slots, Tensor positions, Tensor[] keys, Tensor[] "
      "values) -> ()");
  m.def(
      "attend_prompt(Tensor(a!) output, Tensor query, int length, Tensor coded_keys, Tensor "
      "coded_values, Tensor exact_keys, Tensor exact_values, float scale, float softcap, int "
      "window, bool exact_step, int exact_tiles) -> ()");
  m.def(
      "attend(int handle, int layer, Tensor(a!) output, Tensor query, Tensor pages, Tensor "
      "block_table, Tensor tokens, Tensor open_keys, Tensor open_values, Tensor open_tiles) -> ()");
  m.def(
      "read(int handle, int layer, Tensor pages, Tensor page_numbers, int first, Tensor(a!) keys, "
      "Tensor(b!) values) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CPU, m) {
  m.impl("open", TORCH_BOX(&kvc::open_codes));
  m.impl("store", TORCH_BOX(&store));
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("attend_prompt", TORCH_BOX(&attend_prompt));
  m.impl("read", TORCH_BOX(&read_tokens));
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CompositeExplicitAutograd, m) {
  m.impl("close", TORCH_BOX(&kvc::close_codes));
  m.impl("tile_bytes", TORCH_BOX(&tile_bytes));
}
