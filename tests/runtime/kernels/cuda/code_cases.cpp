// Codes of the GPU against runtime/kernels' references: the same bytes.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/cuda/device_layout.h"
#include "runtime/kernels/quantise.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/case_tiles.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

constexpr int kBlockRows = 32;

template <class T>
std::string first_difference(const std::string& what, const std::vector<T>& actual,
                             const std::vector<T>& expected) {
  if (actual.size() != expected.size()) {
    return what + ": " + std::to_string(actual.size()) + " numbers";
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] != expected[i]) {
      return what + "[" + std::to_string(i) + "] is " + std::to_string(actual[i]) + ", expected " +
             std::to_string(expected[i]);
    }
  }
  return {};
}

struct QuantiseShape {
  DeviceElement from, to;
  bool per_channel;
};

// Blocks of a store, with numbers that are none where nothing was written.
struct Store {
  Store(KernelBackend& backend, int num_sequences, int num_blocks, int width, DeviceElement element,
        bool per_channel) {
    bytes = static_cast<std::size_t>(
        kv_rows_bytes(kBlockRows, width, 32,
                      element == DeviceElement::kInt8 ? KvElement::kInt8 : KvElement::kInt4,
                      per_channel ? KvScales::kPerChannel : KvScales::kPerRow));
    for (int i = 0; i < num_sequences * num_blocks; ++i) {
      blocks.push_back(backend.unwritten<std::uint8_t>(bytes));
    }
    rows = {backend.upload(std::vector<const void*>(blocks.begin(), blocks.end())),
            num_blocks,
            kBlockRows,
            width,
            element,
            per_channel,
            1};
  }
  DeviceRows rows;
  std::vector<std::uint8_t*> blocks;
  std::size_t bytes = 0;
};

// Two sequences of 64 rows, behind 32 rows and none.
std::string quantise_case(const QuantiseShape& shape, KernelBackend& backend) {
  const int width = 96, count = 64, blocks = 3;
  std::vector<float> numbers = case_numbers(2 * count * width, 5);
  for (int i = 0; i < 32; ++i) {
    numbers[static_cast<std::size_t>(i)] = 3;           // equal ones: no scale
    numbers[static_cast<std::size_t>(40 + i)] *= 1e6f;  // beyond float16 under float16 scales
  }
  const std::vector<std::uint16_t> halves = narrowed(numbers, shape.from);
  Store store(backend, 2, blocks, width, shape.to, shape.per_channel);
  const std::vector<std::int32_t> first_rows = {32, 0};
  backend.run(QuantiseRows{.from = backend.upload(halves),
                           .from_element = shape.from,
                           .to = store.rows,
                           .first_rows = backend.upload(first_rows),
                           .num_sequences = 2,
                           .count = count});
  const KvElement from =
      shape.from == DeviceElement::kBFloat16 ? KvElement::kBFloat16 : KvElement::kFloat16;
  std::vector<std::uint8_t> expected(store.bytes);
  for (int sequence = 0; sequence < 2; ++sequence) {
    for (int block = 0; block < 2; ++block) {
      const int first = (sequence * count + block * kBlockRows) * width;
      quantise_rows_reference(
          {.from = halves.data() + first,
           .from_element = from,
           .count = kBlockRows,
           .width = width,
           .head_dim = 32,
           .element = shape.to == DeviceElement::kInt8 ? KvElement::kInt8 : KvElement::kInt4,
           .scales = shape.per_channel ? KvScales::kPerChannel : KvScales::kPerRow,
           .to = expected.data()});
      const int at =
          sequence * blocks + first_rows[static_cast<std::size_t>(sequence)] / kBlockRows;
      const std::string difference = first_difference(
          "block " + std::to_string(at + block),
          backend.download(store.blocks[static_cast<std::size_t>(at + block)], store.bytes),
          expected);
      if (!difference.empty()) {
        return difference;
      }
    }
  }
  // Back to numbers: rows 40 .. 90 of the first sequence.
  std::vector<const void*> host_blocks;
  std::vector<std::vector<std::uint8_t>> copies;
  for (int block = 0; block < blocks; ++block) {
    copies.push_back(backend.download(store.blocks[static_cast<std::size_t>(block)], store.bytes));
  }
  for (const auto& copy : copies) {
    host_blocks.push_back(copy.data());
  }
  const int taken = 50;
  auto* back = backend.unwritten<std::uint16_t>(static_cast<std::size_t>(taken * width));
  backend.run(DequantiseRows{
      .from = store.rows, .first = 40, .count = taken, .to = back, .to_element = shape.from});
  std::vector<std::uint16_t> rebuilt(static_cast<std::size_t>(taken * width));
  dequantise_rows_reference(
      {.rows = {host_blocks.data(), kBlockRows, blocks * kBlockRows,
                shape.to == DeviceElement::kInt8 ? KvElement::kInt8 : KvElement::kInt4,
                shape.per_channel ? KvScales::kPerChannel : KvScales::kPerRow},
       .width = width,
       .head_dim = 32,
       .first = 40,
       .last = 40 + taken,
       .to_element = from,
       .to = rebuilt.data()});
  return first_difference("dequantised", backend.download(back, rebuilt.size()), rebuilt);
}

// Two sequences of two tiles, behind one and none, in blocks of two.
std::string tiles_case(bool gain, KernelBackend& backend) {
  const TileLayout layout = case_layout(gain);
  const auto count = static_cast<std::size_t>(layout.num_coefficients());
  const std::size_t num_tiles = 4, bytes = static_cast<std::size_t>(layout.bytes());
  std::vector<float> z =
      case_numbers(static_cast<std::int64_t>(num_tiles * kTileTokens * count), 7);
  const std::vector<float> steps = case_steps(static_cast<std::int64_t>(count), 8);
  for (std::size_t i = 0; i < count; ++i) {
    z[i] *= 20;  // a token that a gain suits
  }
  std::vector<std::uint8_t*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(backend.unwritten<std::uint8_t>(2 * bytes));
  }
  const void* const* table = backend.upload(std::vector<const void*>(blocks.begin(), blocks.end()));
  DeviceBlock block;
  block.tiles = device_layout(layout);
  DeviceTiles tiles = block.tiles;
  tiles.blocks = table;
  tiles.max_blocks = tiles.block_tiles = 2;
  const PagedBlocks of{.image = reinterpret_cast<const std::uint8_t*>(backend.upload(steps)),
                       .blocks = backend.upload(std::vector<DeviceBlock>{block}),
                       .num_blocks = 1,
                       .num_coefficients = static_cast<int>(count)};
  const float* const encoded = backend.upload(z);
  float* const rebuilt = backend.unwritten<float>(z.size());
  for (int sequence = 0; sequence < 2; ++sequence) {
    const auto first = static_cast<std::ptrdiff_t>(z.size() / 2) * sequence;
    backend.run(StoreCodes{.of = of,
                           .tables = backend.upload(std::vector<DeviceTiles>{tiles}),
                           .sequence = sequence,
                           .first_tile = 1 - sequence,
                           .count = 2 * static_cast<int>(kTileTokens),
                           .z = encoded + first});
    DeviceTiles own = tiles;
    own.blocks += 2 * sequence;
    backend.run(DecodeTiles{
        .tiles = own, .first_tile = 1 - sequence, .count = 2, .levels = rebuilt + first});
  }
  const std::vector<float> decoded = backend.download(rebuilt, z.size());
  const std::size_t places[] = {1, 2, 4, 5};  // of the tiles among all
  std::vector<float> values;
  for (std::size_t i = 0; i < num_tiles; ++i) {
    const std::size_t first = i * kTileTokens * count;
    const std::uint8_t* tile = blocks[places[i] / 2] + places[i] % 2 * bytes;
    const std::string difference = check_tile(layout, z.data() + first, kTileTokens, steps,
                                              backend.download(tile, bytes), values);
    if (!difference.empty()) {
      return "tile " + std::to_string(i) + ": " + difference;
    }
  }
  return compare("decoded", decoded, values, 0);
}

}  // namespace

std::vector<KernelCase> code_cases() {
  std::vector<KernelCase> cases;
  for (const DeviceElement from : {DeviceElement::kBFloat16, DeviceElement::kFloat16}) {
    for (const DeviceElement to : {DeviceElement::kInt8, DeviceElement::kInt4}) {
      for (const bool per_channel : {false, true}) {
        const QuantiseShape shape{from, to, per_channel};
        std::string name = "quantise_" + element_name(from);
        name += "_to_" + element_name(to);
        name += per_channel ? "_per_channel" : "_per_row";
        cases.push_back(
            {name, [shape](KernelBackend& backend) { return quantise_case(shape, backend); }});
      }
    }
  }
  for (const bool gain : {false, true}) {
    cases.push_back({gain ? "tiles_with_gain" : "tiles",
                     [gain](KernelBackend& backend) { return tiles_case(gain, backend); }});
  }
  return cases;
}

}  // namespace kvc::testing
