#include "runtime/gpu/gpu_tiles.h"

#include <algorithm>
#include <cstring>

#include "core/kv_plan_bytes.h"

namespace kvc {

DeviceTiles device_layout(const TileLayout& layout) {
  DeviceTiles tiles;
  for (int bits = 0; bits <= kMostCodeBits; ++bits) {
    tiles.coefficients[bits] = static_cast<int>(layout.coefficients[bits]);
  }
  tiles.num_coefficients = static_cast<int>(layout.num_coefficients());
  tiles.code_bytes = static_cast<int>(layout.code_bytes());
  tiles.gain = layout.gain;
  return tiles;
}

GpuTiles::GpuTiles(const KvPlan& plan, const CodedLayers& coded, const GpuPages& pages)
    : layers(coded) {
  GpuPages of_tiles = pages;  // whose bytes they count
  of_tiles.page_tokens /= kTileTokens;
  for (std::int64_t& rows : of_tiles.most_rows) {
    rows = tokens_in_blocks(plan, rows) / kTileTokens;
  }
  most_tiles_ = of_tiles.most_rows;
  for (int block = layers.first_block; block < layers.first_block + layers.num_blocks; ++block) {
    specs_.push_back(plan.coded[static_cast<std::size_t>(block)]);
    rows_.emplace_back(of_tiles, tile_layout(specs_.back()).bytes(), at::kChar);
  }
  write_blocks(pages.device);
}

void GpuTiles::write_blocks(at::Device device) {
  at::Tensor host =
      at::empty({static_cast<std::int64_t>(rows_.size() * sizeof(DeviceTiles))}, at::kByte);
  for (std::size_t block = 0; block < rows_.size(); ++block) {
    const DeviceTiles tiles = layout_of(block);
    std::memcpy(host.mutable_data_ptr<std::uint8_t>() + block * sizeof(DeviceTiles), &tiles,
                sizeof(DeviceTiles));
  }
  blocks_ = host.to(device);
}

DeviceTiles GpuTiles::layout_of(std::size_t block) const {
  const DeviceRows rows = rows_[block].table();
  DeviceTiles tiles = device_layout(tile_layout(specs_[block]));
  tiles.blocks = rows.blocks;
  tiles.max_blocks = rows.max_blocks;
  tiles.block_tiles = rows.block_rows;
  return tiles;
}

void GpuTiles::reserve(std::size_t sequence) {
  for (GpuRows& rows : rows_) {
    rows.reserve(sequence, most_tiles_[sequence]);
  }
}

void GpuTiles::allow(std::size_t sequence, std::int64_t codes) {
  most_tiles_[sequence] = std::max(most_tiles_[sequence], codes / kTileTokens);
  for (GpuRows& rows : rows_) {
    rows.allow(most_tiles_[sequence]);
  }
  write_blocks(blocks_.device());
}

void GpuTiles::copy(std::size_t from, std::size_t to) {
  for (GpuRows& rows : rows_) {
    rows.copy(from, to);
  }
}

DeviceTiles GpuTiles::block(std::size_t block, std::size_t sequence) const {
  DeviceTiles tiles = layout_of(block);
  tiles.blocks = rows_[block].table(sequence).blocks;
  return tiles;
}

// They follow each other.
std::vector<std::size_t> GpuTiles::blocks_of(CodedParts part) const {
  std::vector<std::size_t> blocks;
  for (std::size_t block = 0; block < specs_.size(); ++block) {
    if (part == CodedParts::kKeys ? specs_[block].has_keys() : specs_[block].has_values()) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

RankCodes GpuTiles::codes(CodedParts part) const {
  const std::vector<std::size_t> blocks = blocks_of(part);
  RankCodes codes{tables() + blocks.front(), static_cast<int>(blocks.size()), 0};
  for (const std::size_t block : blocks) {
    codes.most_coefficients =
        std::max(codes.most_coefficients, static_cast<int>(specs_[block].num_coefficients()));
  }
  return codes;
}

std::int64_t GpuTiles::most_tile_bytes(CodedParts part) const {
  std::int64_t most = 0;
  for (const std::size_t block : blocks_of(part)) {
    most = std::max(most, tile_layout(specs_[block]).bytes());
  }
  return most;
}

std::int64_t GpuTiles::bytes(std::size_t sequence) const {
  std::int64_t bytes = 0;
  for (const GpuRows& rows : rows_) {
    bytes += rows.bytes(sequence);
  }
  return bytes;
}

}  // namespace kvc
