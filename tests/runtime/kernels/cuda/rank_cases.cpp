// Attention over latents and over coded tokens.
#include <cmath>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"
#include "tests/runtime/kernels/cuda/rank_case.h"

namespace kvc::testing {
namespace {

int round_up(int count, int step) { return (count + step - 1) / step * step; }

std::string name_of(const RankShape& shape) {
  std::string name = shape.num_blocks > 0 ? "codes" : element_name(shape.store);
  const auto add = [&](const char* word, int number) {
    name += word;
    name += std::to_string(number);
  };
  name += "_in_";
  name += element_name(shape.element);
  add("_", shape.num_heads);
  add("_on_", shape.num_kv_heads);
  add("x", shape.head_dim);
  add("_ranks_", shape.key_rank);
  add("_", shape.value_rank);
  for (const int rows : shape.num_rows) {
    add("_rows_", rows);
  }
  add("_in_", shape.num_parts);
  if (shape.num_stored > 0) {
    add("_stored_", shape.num_stored);
  }
  if (shape.num_blocks > 0) {
    add("_blocks_", shape.num_blocks);
  }
  name += shape.per_channel ? "_per_channel" : "";
  name += shape.norm ? "_norm" : "";
  name += shape.offset ? "_offset" : "";
  name += shape.interleaved ? "_interleaved" : "";
  name += shape.rotated >= 0 ? "_partly_rotated" : "";
  name += shape.positions ? "_positions" : "";
  name += shape.paged ? "_paged" : "";
  name += shape.own ? "_own" : "";
  name += shape.first_rows.empty() ? "" : "_window";
  name += shape.gain ? "_gain" : "";
  name += shape.softcap != 0 ? "_softcap" : "";
  return name;
}

std::string run_latents(KernelBackend& backend, const RankShape& shape) {
  const bool codes = is_coded(shape.store) || shape.store == DeviceElement::kFloat8;
  const int width = round_up(shape.key_rank + shape.value_rank, codes ? 32 : 8);
  CaseRowsShape rows{shape.num_rows, width, width, 64, shape.store, shape.per_channel};
  const CaseRows latents(backend, rows, 500);
  RankInputs inputs(backend, shape, shape.key_rank, round_up(shape.value_rank, 32));
  std::vector<std::int32_t> first_column;
  for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    first_column.push_back(kv_head * 2 * shape.num_stored);
    for (int i = 0; i < shape.num_stored; ++i) {
      // Ascending, others for each head.
      const int pair = (2 * i + kv_head % 2) * shape.num_pairs() / (2 * shape.num_stored);
      inputs.store_channel(kv_head, shape.interleaved ? 2 * pair : pair, first_column.back() + i);
      inputs.store_channel(kv_head, shape.interleaved ? 2 * pair + 1 : pair + shape.num_pairs(),
                           first_column.back() + shape.num_stored + i);
    }
  }
  inputs.upload_keys(backend, first_column);
  inputs.device.latents = latents.device();
  inputs.device.key_rank = shape.key_rank;
  inputs.device.value_column = width - shape.value_rank;
  inputs.device.value_rank = shape.value_rank;
  const auto columns = [&](std::size_t sequence, std::int64_t row, std::int64_t first,
                           std::int64_t count) {
    return reference_row(latents.host(sequence), width, width, row, first, count);
  };
  return inputs.check(
      backend,
      [&](std::size_t sequence, std::int64_t row, std::int64_t kv_head) {
        return inputs.key(sequence, row, kv_head, columns(sequence, row, 0, shape.key_rank),
                          shape.own ? RankInputs::own_factor(sequence) : 1);
      },
      [&](std::size_t sequence, std::int64_t row, std::int64_t) {
        return columns(sequence, row, width - shape.value_rank, shape.value_rank);
      });
}

// Random codes of one block of all sequences, and their levels times gains.
struct CodedBlock {
  TileLayout layout;
  DeviceTiles device;
  std::vector<std::vector<ReferenceRow>> levels;  // [sequences][tokens]
  std::vector<std::vector<double>> gains;
};

CodedBlock coded_block(KernelBackend& backend, const RankShape& shape, int index) {
  constexpr int kBlockTiles = 2;
  CodedBlock block;
  block.layout.gain = shape.gain;
  for (int bits = 1; bits <= kWidestCode; ++bits) {  // some widths are missing
    block.layout.coefficients[bits] =
        bits == 3 ? 0 : (bits * 5 + index * 3) % 7 + (bits == 2 ? 9 : 0);
    block.device.coefficients[bits] = static_cast<int>(block.layout.coefficients[bits]);
  }
  const std::int64_t count = block.layout.num_coefficients();
  std::mt19937 random(static_cast<unsigned>(900 + index));
  const int max_blocks = ((shape.longest() + 31) / 32 + kBlockTiles - 1) / kBlockTiles;
  std::vector<const void*> table;
  for (const int rows : shape.num_rows) {
    block.levels.emplace_back();
    block.gains.emplace_back();
    for (int i = 0; i < max_blocks; ++i) {
      std::vector<std::uint8_t> bytes;
      for (int tile = i * kBlockTiles; tile < (i + 1) * kBlockTiles && tile * 32 < rows; ++tile) {
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * kTileTokens)),
            gains(kTileTokens);
        std::vector<ReferenceRow> levels(kTileTokens);
        std::int64_t c = 0;
        for (int bits = kWidestCode; bits >= 1; --bits) {
          for (std::int64_t k = 0; k < block.layout.coefficients[bits]; ++k, ++c) {
            for (std::size_t token = 0; token < kTileTokens; ++token) {
              const auto code = static_cast<std::uint8_t>(random() % (1u << bits));
              codes[static_cast<std::size_t>(c * kTileTokens) + token] = code;
              levels[token].push_back(code + double{first_level(bits)});
            }
          }
        }
        for (std::uint8_t& gain : gains) {
          gain = static_cast<std::uint8_t>(random() % 5);
        }
        bytes.resize(bytes.size() + static_cast<std::size_t>(block.layout.bytes()));
        pack_tile_reference(block.layout, codes.data(), gains.data(),
                            bytes.data() + bytes.size() - block.layout.bytes());
        for (std::size_t token = 0; token < kTileTokens; ++token) {
          block.levels.back().push_back(levels[token]);
          block.gains.back().push_back(shape.gain ? double{kGains[gains[token]]} : 1.0);
        }
      }
      table.push_back(bytes.empty() ? nullptr : backend.upload(bytes));
    }
  }
  block.device.blocks = backend.upload(table);
  block.device.max_blocks = max_blocks;
  block.device.block_tiles = kBlockTiles;
  block.device.num_coefficients = static_cast<int>(count);
  block.device.code_bytes = static_cast<int>(block.layout.code_bytes());
  block.device.gain = shape.gain;
  return block;
}

std::string run_codes(KernelBackend& backend, const RankShape& shape) {
  std::deque<CodedBlock> blocks;
  std::vector<DeviceTiles> tiles;
  int most = 0;
  for (int i = 0; i < shape.num_blocks; ++i) {
    blocks.push_back(coded_block(backend, shape, i));
    tiles.push_back(blocks.back().device);
    most = std::max(most, tiles.back().num_coefficients);
  }
  RankInputs inputs(backend, shape, most, round_up(most, 32));
  inputs.upload_keys(backend, {});
  inputs.device.key_codes =
      inputs.device.value_codes = {backend.upload(tiles), shape.num_blocks, most};
  const auto block_of = [&](std::int64_t kv_head) -> const CodedBlock& {
    return blocks[static_cast<std::size_t>(kv_head / (shape.num_kv_heads / shape.num_blocks))];
  };
  return inputs.check(
      backend,
      [&](std::size_t sequence, std::int64_t row, std::int64_t kv_head) {
        const CodedBlock& block = block_of(kv_head);
        return inputs.key(sequence, row, kv_head,
                          block.levels[sequence][static_cast<std::size_t>(row)],
                          block.gains[sequence][static_cast<std::size_t>(row)]);
      },
      [&](std::size_t sequence, std::int64_t row, std::int64_t kv_head) {
        const CodedBlock& block = block_of(kv_head);
        ReferenceRow value = block.levels[sequence][static_cast<std::size_t>(row)];
        for (double& x : value) {
          x *= block.gains[sequence][static_cast<std::size_t>(row)];
        }
        return value;
      });
}

KernelCase rank_case(const RankShape& shape) {
  return {name_of(shape), [shape](KernelBackend& backend) {
            return shape.num_blocks > 0 ? run_codes(backend, shape) : run_latents(backend, shape);
          }};
}

}  // namespace

std::vector<KernelCase> latent_attention_cases(CaseSize size) {
  const DeviceElement half = DeviceElement::kFloat16;
  std::vector<RankShape> shapes{
      {},
      {.element = half, .store = half, .offset = true, .positions = true},
      {.num_rows = {70, 33}, .positions = true, .paged = true},
      {.num_rows = {1, 100},
       .num_heads = 12,
       .num_kv_heads = 1,
       .head_dim = 32,
       .num_parts = 3,
       .interleaved = true},
      {.num_rows = {70},
       .first_rows = {33},
       .num_heads = 2,
       .head_dim = 128,
       .num_parts = 1,
       .key_rank = 96,
       .value_rank = 136,
       .softcap = 4},
      {.num_heads = 36, .num_kv_heads = 4, .head_dim = 32, .key_rank = 8, .value_rank = 16},
      {.element = half, .store = half, .norm = true, .offset = true, .rotated = 16},
      {.head_dim = 128,
       .key_rank = 96,
       .value_rank = 96,
       .element = half,
       .store = half,
       .offset = true,
       .num_stored = 21},
      {.num_rows = {37, 70}, .own = true},
      {.num_rows = {33, 5},
       .head_dim = 80,
       .key_rank = 24,
       .value_rank = 32,
       .element = half,
       .store = half,
       .interleaved = true,
       .own = true},
      {.key_rank = 64,
       .value_rank = 64,
       .element = half,
       .store = DeviceElement::kInt8,
       .per_channel = true,
       .num_stored = 11},
      {.key_rank = 64, .value_rank = 96, .store = DeviceElement::kInt4},
      {.key_rank = 32, .value_rank = 32, .element = half, .store = DeviceElement::kFloat8},
  };
  if (size == CaseSize::kLarge) {
    const RankShape large{.num_rows = {2100, 1, 700},
                          .num_heads = 32,
                          .num_kv_heads = 8,
                          .head_dim = 128,
                          .num_parts = 5};
    for (const auto& [key_rank, value_rank, stored] : {std::array{384, 576, 0}, {1408, 1408, 44}}) {
      RankShape shape = large;
      shape.key_rank = key_rank;
      shape.value_rank = value_rank;
      shape.num_stored = stored;
      shape.own = stored == 0;
      shape.element = shape.store = stored > 0 ? half : DeviceElement::kBFloat16;
      shapes.push_back(shape);
    }
  }
  std::vector<KernelCase> cases;
  for (const RankShape& shape : shapes) {
    cases.push_back(rank_case(shape));
  }
  return cases;
}

std::vector<KernelCase> coded_attention_cases(CaseSize size) {
  const DeviceElement half = DeviceElement::kFloat16;
  std::vector<RankShape> shapes{
      {.element = half, .num_blocks = 2},
      {.num_rows = {65, 1}, .element = half, .offset = true, .num_blocks = 2, .gain = true},
      {.num_rows = {100},
       .first_rows = {50},
       .head_dim = 128,
       .element = half,
       .offset = true,
       .num_blocks = 1,
       .gain = true},
      {.num_heads = 20,
       .num_kv_heads = 2,
       .head_dim = 32,
       .element = half,
       .interleaved = true,
       .num_blocks = 1},
  };
  if (size == CaseSize::kLarge) {
    for (const int blocks : {8, 1}) {
      shapes.push_back({.num_rows = {2100, 1, 700},
                        .num_heads = 32,
                        .num_kv_heads = 8,
                        .head_dim = 128,
                        .num_parts = 5,
                        .element = half,
                        .offset = true,
                        .num_blocks = blocks,
                        .gain = true});
    }
  }
  std::vector<KernelCase> cases;
  for (RankShape shape : shapes) {
    shape.key_rank = shape.value_rank = 0;  // as many as the blocks have coefficients
    cases.push_back(rank_case(shape));
  }
  return cases;
}

}  // namespace kvc::testing
