// The operators torch.ops.kvconvert.*, through torch's stable ABI: the library loads into every torch from 2.11 on.
// What each does stands in runtime/ops/paged_codes.h; tensors are checked here.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/ops/paged_codes.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr std::size_t kBlockNumbers = 7 + kvc::kWidestCode;  // that describe a block
constexpr std::size_t kBlockTensors = 5;

// An engine's layers. Angles stay where the engine has them.
struct OpenCodes {
  std::optional<kvc::PagedCodes> codes;
  std::optional<Tensor> cos, sin;
};

class Registry {
 public:
  std::int64_t add(std::shared_ptr<const OpenCodes> opened) {
    const std::lock_guard lock(mutex_);
    all_.emplace(++last_, std::move(opened));
    return last_;
  }
  std::shared_ptr<const OpenCodes> find(std::int64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(handle);
    STD_TORCH_CHECK(found != all_.end(), "kvconvert: codes ", handle, " are closed");
    return found->second;
  }
  void remove(std::int64_t handle) {
    const std::lock_guard lock(mutex_);
    all_.erase(handle);
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<const OpenCodes>> all_;
};

Registry& registry() {
  static Registry all;
  return all;
}

void parallel(std::int64_t count, std::int64_t least,
              const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= least) {
    if (count > 0) {
      body(0, count);
    }
    return;
  }
  torch::stable::parallel_for(0, count, least, body);
}

// Contiguous, of this type and rank.
template <class T>
const T* numbers(const Tensor& tensor, ScalarType type, std::int64_t rank, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type && tensor.dim() == rank &&
                      tensor.is_contiguous(),
                  "kvconvert: ", name, ": expected a contiguous tensor of ", rank,
                  " dimensions on the CPU, of another type than it has or else");
  return static_cast<const T*>(tensor.data_ptr());
}

const float* floats(const Tensor& tensor, std::int64_t rank, const char* name) {
  return numbers<float>(tensor, ScalarType::Float, rank, name);
}

kvc::HeadRows head_rows(const Tensor& rows, std::int64_t count, std::int64_t heads,
                        std::int64_t head_dim, const char* name) {
  STD_TORCH_CHECK(rows.is_cpu() && rows.dim() == 3 && rows.size(0) == count &&
                      rows.size(1) == heads && rows.size(2) == head_dim && rows.stride(2) == 1,
                  "kvconvert: ", name, ": expected [", count, ", ", heads, ", ", head_dim,
                  "] on the CPU with neighbouring channels");
  const ScalarType type = rows.scalar_type();
  STD_TORCH_CHECK(
      type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half,
      "kvconvert: ", name, ": expected float32, bfloat16 or float16");
  const kvc::KvElement element = type == ScalarType::Float      ? kvc::KvElement::kFloat32
                                 : type == ScalarType::BFloat16 ? kvc::KvElement::kBFloat16
                                                                : kvc::KvElement::kFloat16;
  return {rows.data_ptr(), element, rows.stride(0), rows.stride(1)};
}

kvc::PageMemory page_memory(const Tensor& pages, const kvc::PagedCodes& codes) {
  STD_TORCH_CHECK(pages.is_cpu() && pages.scalar_type() == ScalarType::Byte && pages.dim() == 2 &&
                      pages.stride(1) == 1,
                  "kvconvert: pages: expected uint8 [pages, bytes] on the CPU");
  const std::int64_t bytes = codes.tile_bytes(), tiles = bytes == 0 ? 1 : pages.size(1) / bytes;
  STD_TORCH_CHECK(tiles >= 1, "kvconvert: pages: ", pages.size(1), " bytes, expected at least ",
                  bytes);
  return {static_cast<std::uint8_t*>(pages.data_ptr()), pages.stride(0), pages.size(0), tiles};
}

// Kernels turn keys by multiples of the first angle: is every row of the table that?
void check_angles(const kvc::RopeAngles& rope, std::int64_t count) {
  const std::int64_t pairs = rope.num_pairs, last = count - 1;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const double factor = rope.cos[pair];
    const double first = std::atan2(rope.sin[pairs + pair], rope.cos[pairs + pair]);
    for (const std::int64_t position : {last / 3, last}) {
      const double angle = first * static_cast<double>(position);
      const double slack = 1e-3 + 1e-6 * static_cast<double>(position);
      STD_TORCH_CHECK(
          std::abs(rope.cos[position * pairs + pair] - factor * std::cos(angle)) < slack &&
              std::abs(rope.sin[position * pairs + pair] - factor * std::sin(angle)) < slack,
          "kvconvert: the angles of position ", position, " are not ", position,
          " times those of position 1: this kind of RoPE is not served from codes");
    }
  }
}

kvc::PagedBlock block_of(const std::int64_t* numbers, const Tensor* tensors,
                         const kvc::PagedCodes::Shape& shape, std::int64_t first_head) {
  kvc::PagedBlock block;
  block.num_layers = shape.num_layers;
  block.head_dim = shape.head_dim;
  const bool whole = numbers[0] < 0;
  block.num_heads = whole ? shape.num_kv_heads : 1;
  block.first_head = whole ? 0 : numbers[0] - first_head;
  block.parts = static_cast<kvc::PagedParts>(numbers[1]);
  block.bases.count = numbers[2];
  block.bases.rotated = numbers[3] != 0;
  block.layout.gain = numbers[4] != 0;
  std::copy_n(numbers + 6, kvc::kWidestCode + 1, block.layout.coefficients);
  block.layout.coefficients[0] = 0;
  const std::int64_t n = block.channels(), k = block.layout.num_coefficients();
  block.encoder = floats(tensors[0], 2, "encoder");
  block.decoder = floats(tensors[1], 2, "decoder");
  block.mean = floats(tensors[2], 1, "mean");
  block.steps = floats(tensors[3], 1, "steps");
  STD_TORCH_CHECK(tensors[0].size(0) == k && tensors[0].size(1) == n && tensors[1].size(0) == n &&
                      tensors[1].size(1) == k && tensors[2].size(0) == n && tensors[3].size(0) == k,
                  "kvconvert: factors of a block of ", n, " channels and ", k,
                  " coefficients have other shapes");
  if (block.bases.count > 1) {
    block.bases.channels =
        ::numbers<std::int32_t>(tensors[4], ScalarType::Int, 1, "channels of bases");
    STD_TORCH_CHECK(tensors[4].size(0) == n, "kvconvert: channels of bases: expected ", n);
  }
  return block;
}

// shape: layers, query heads, KV heads, head_dim, first KV head, window, interleaved. scale: those of scores and of
// their soft cap. blocks: kBlockNumbers for each: head or -1, parts, bases, rotated, gain, unused, coefficients of 0 to 8
// bits. factors: kBlockTensors for each.
std::int64_t open_codes(const std::vector<std::int64_t>& shape, const Tensor& scale,
                        const Tensor& cos, const Tensor& sin,
                        const std::vector<std::int64_t>& blocks,
                        const std::vector<Tensor>& factors) {
  STD_TORCH_CHECK(shape.size() == 7 && blocks.size() % kBlockNumbers == 0 &&
                      factors.size() == blocks.size() / kBlockNumbers * kBlockTensors,
                  "kvconvert: open: a description of another length");
  const auto opened = std::make_shared<OpenCodes>();
  opened->cos = cos;
  opened->sin = sin;
  const std::int64_t positions = cos.size(0);
  kvc::PagedCodes::Shape all{.num_layers = shape[0],
                             .num_heads = shape[1],
                             .num_kv_heads = shape[2],
                             .head_dim = shape[3],
                             .scale = floats(scale, 1, "scale")[0],
                             .softcap = floats(scale, 1, "scale")[1],
                             .window = shape[5],
                             .rope = {.cos = floats(cos, 2, "cos"),
                                      .sin = floats(sin, 2, "sin"),
                                      .num_pairs = cos.size(1),
                                      .interleaved = shape[6] != 0},
                             .num_positions = positions};
  STD_TORCH_CHECK(sin.size(0) == positions && sin.size(1) == cos.size(1) &&
                      positions >= kvc::kTileTokens && 2 * cos.size(1) <= all.head_dim,
                  "kvconvert: open: angles of at least ", kvc::kTileTokens,
                  " positions are expected, cos and sin alike");
  check_angles(all.rope, positions);
  std::vector<kvc::PagedBlock> described;
  for (std::size_t i = 0; i * kBlockNumbers < blocks.size(); ++i) {
    described.push_back(block_of(blocks.data() + i * kBlockNumbers,
                                 factors.data() + i * kBlockTensors, all, shape[4]));
  }
  opened->codes.emplace(all, described);
  return registry().add(opened);
}

void close_codes(std::int64_t handle) { registry().remove(handle); }

std::int64_t tile_bytes(std::int64_t handle) {
  return registry().find(handle)->codes->tile_bytes();
}

void store(std::int64_t handle, Tensor pages, const Tensor& slots, const Tensor& positions,
           const std::vector<Tensor>& keys, const std::vector<Tensor>& values) {
  const auto opened = registry().find(handle);
  const kvc::PagedCodes& codes = *opened->codes;
  const kvc::PagedCodes::Shape& shape = codes.shape();
  const kvc::PageMemory memory = page_memory(pages, codes);
  const auto* slot = numbers<std::int64_t>(slots, ScalarType::Long, 1, "slots");
  const auto* position = numbers<std::int64_t>(positions, ScalarType::Long, 1, "positions");
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
  std::vector<kvc::LayerRows> layers;
  for (std::size_t i = 0; i < num_layers; ++i) {
    layers.push_back({head_rows(keys[i], count, shape.num_kv_heads, shape.head_dim, "keys"),
                      head_rows(values[i], count, shape.num_kv_heads, shape.head_dim, "values")});
  }
  codes.store(memory, slot, position, count, layers, parallel);
}

void attend(std::int64_t handle, std::int64_t layer, Tensor output, const Tensor& query,
            const Tensor& pages, const Tensor& block_table, const Tensor& tokens) {
  const auto opened = registry().find(handle);
  const kvc::PagedCodes& codes = *opened->codes;
  const kvc::PagedCodes::Shape& shape = codes.shape();
  const kvc::PageMemory memory = page_memory(pages, codes);
  STD_TORCH_CHECK(block_table.dim() == 2 && block_table.stride(1) == 1 &&
                      block_table.scalar_type() == ScalarType::Int && layer >= 0 &&
                      layer < shape.num_layers,
                  "kvconvert: attend: expected an int32 block table [sequences, pages] and a layer "
                  "below ",
                  shape.num_layers);
  const kvc::PagedCodes::Sequences sequences{
      .pages = static_cast<const std::int32_t*>(block_table.data_ptr()),
      .stride = block_table.stride(0),
      .count = query.size(0),
      .tokens = numbers<std::int32_t>(tokens, ScalarType::Int, 1, "sequence lengths")};
  const std::int64_t page_tokens = memory.page_tiles * kvc::kTileTokens;
  STD_TORCH_CHECK(tokens.size(0) == sequences.count && block_table.size(0) >= sequences.count,
                  "kvconvert: attend: ", sequences.count, " queries, ", tokens.size(0),
                  " lengths and ", block_table.size(0), " rows of pages");
  for (std::int64_t i = 0; i < sequences.count; ++i) {
    const std::int64_t length = sequences.tokens[i];
    STD_TORCH_CHECK(
        length >= 1 && length <= shape.num_positions && length <= block_table.size(1) * page_tokens,
        "kvconvert: attend: a sequence of ", length, " tokens, expected 1 to ",
        std::min(shape.num_positions, block_table.size(1) * page_tokens));
    for (std::int64_t page = 0; page * page_tokens < length; ++page) {
      const std::int32_t number = sequences.pages[i * sequences.stride + page];
      STD_TORCH_CHECK(number >= 0 && number < memory.count, "kvconvert: attend: page ", number,
                      ", expected 0 to ", memory.count - 1);
    }
  }
  codes.attend(memory, sequences, layer,
               head_rows(query, sequences.count, shape.num_heads, shape.head_dim, "query"),
               head_rows(output, sequences.count, shape.num_heads, shape.head_dim, "output"),
               parallel);
}

void read_tokens(std::int64_t handle, std::int64_t layer, const Tensor& pages,
                 const Tensor& page_numbers, std::int64_t first, Tensor keys, Tensor values) {
  const auto opened = registry().find(handle);
  const kvc::PagedCodes& codes = *opened->codes;
  const kvc::PagedCodes::Shape& shape = codes.shape();
  const kvc::PageMemory memory = page_memory(pages, codes);
  const auto* page = numbers<std::int32_t>(page_numbers, ScalarType::Int, 1, "page numbers");
  const std::int64_t count = keys.size(0), page_tokens = memory.page_tiles * kvc::kTileTokens;
  STD_TORCH_CHECK(first >= 0 && first % kvc::kTileTokens == 0 &&
                      first + count <= page_numbers.size(0) * page_tokens &&
                      first + count <= shape.num_positions && layer >= 0 &&
                      layer < shape.num_layers,
                  "kvconvert: read: tokens ", first, " to ", first + count,
                  " are not all in the pages, or do not begin with a tile");
  for (std::int64_t i = first / page_tokens; i * page_tokens < first + count; ++i) {
    STD_TORCH_CHECK(page[i] >= 0 && page[i] < memory.count, "kvconvert: read: page ", page[i],
                    ", expected 0 to ", memory.count - 1);
  }
  codes.read(memory, page, first, count, layer,
             {head_rows(keys, count, shape.num_kv_heads, shape.head_dim, "keys"),
              head_rows(values, count, shape.num_kv_heads, shape.head_dim, "values")},
             parallel);
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
      "attend(int handle, int layer, Tensor(a!) output, Tensor query, Tensor pages, Tensor "
      "block_table, Tensor tokens) -> ()");
  m.def(
      "read(int handle, int layer, Tensor pages, Tensor page_numbers, int first, Tensor(a!) keys, "
      "Tensor(b!) values) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CPU, m) {
  m.impl("open", TORCH_BOX(&open_codes));
  m.impl("store", TORCH_BOX(&store));
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("read", TORCH_BOX(&read_tokens));
}

STABLE_TORCH_LIBRARY_IMPL(kvconvert, CompositeExplicitAutograd, m) {
  m.impl("close", TORCH_BOX(&close_codes));
  m.impl("tile_bytes", TORCH_BOX(&tile_bytes));
}
