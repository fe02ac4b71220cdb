#include "runtime/gpu/gpu_tiles.h"

#include <algorithm>
#include <cstring>

#include "core/kv_plan_bytes.h"
#include "runtime/kernels/cuda/device_layout.h"

namespace kvc {

namespace {

std::vector<CodedBlock> specs_of(const KvPlan& plan, const CodedLayers& layers) {
  const auto first = plan.coded.begin() + layers.first_block;
  return {first, first + layers.num_blocks};
}

// Whose bytes the pages count.
GpuPages pages_of_tiles(const KvPlan& plan, const GpuPages& pages) {
  GpuPages of_tiles = pages;
  of_tiles.page_tokens /= kTileTokens;
  for (std::int64_t& rows : of_tiles.most_rows) {
    rows = tokens_in_blocks(plan, rows) / kTileTokens;
  }
  return of_tiles;
}

}  // namespace

GpuTiles::GpuTiles(const KvPlan& plan, const CodedLayers& coded, const GpuPages& pages,
                   at::ScalarType dtype)
    : layers(coded),
      specs_(specs_of(plan, coded)),
      most_tiles_(pages_of_tiles(plan, pages).most_rows),
      rows_(pages_of_tiles(plan, pages), tile_bytes_of(specs_), at::kChar) {
  std::vector<std::int64_t> offsets;
  std::int64_t before = 0;
  for (const CodedBlock& spec : specs_) {
    offsets.push_back(before * pages.page_tokens / kTileTokens);
    before += tile_layout(spec).bytes();
  }
  offsets_ = at::tensor(offsets, at::kLong).view({-1, 1, 1}).to(pages.device);
  write_blocks();
  if (codes_first_token(plan)) {
    const auto sequences = static_cast<std::int64_t>(pages.most_rows.size());
    first_ = at::zeros({layers.num_layers, 2, sequences, plan.kv_dim()},
                       at::TensorOptions(dtype).device(pages.device));
    const std::int64_t row_bytes = plan.kv_dim() * first_.element_size();
    first_addresses_ = (at::arange(layers.num_layers * 2 * sequences, at::kLong) * row_bytes +
                        reinterpret_cast<std::int64_t>(first_.data_ptr()))
                           .view({layers.num_layers, 2, sequences})
                           .to(pages.device);
  }
}

void GpuTiles::set_first(std::size_t sequence, int index, const at::Tensor& key,
                         const at::Tensor& value) {
  const at::Tensor rows = first_[index].select(1, static_cast<std::int64_t>(sequence));
  rows[0].copy_(key.flatten());
  rows[1].copy_(value.flatten());
}

DeviceRows GpuTiles::first_rows(int index, std::int64_t part) const {
  return {.blocks = reinterpret_cast<const void* const*>(first_addresses_[index][part].data_ptr()),
          .max_blocks = 1,
          .block_rows = kScaledRows,
          .width = static_cast<int>(first_.size(3)),
          .element = device_element(first_.scalar_type())};
}

std::int64_t GpuTiles::tile_bytes_of(const std::vector<CodedBlock>& specs) {
  std::int64_t bytes = 0;
  for (const CodedBlock& spec : specs) {
    bytes += tile_layout(spec).bytes();
  }
  return bytes;
}

void GpuTiles::write_addresses() { at::add_out(addresses_, rows_.addresses(), offsets_); }

void GpuTiles::write_blocks() {
  addresses_ = rows_.addresses() + offsets_;
  at::Tensor host =
      at::empty({static_cast<std::int64_t>(specs_.size() * sizeof(DeviceTiles))}, at::kByte);
  for (std::size_t block = 0; block < specs_.size(); ++block) {
    const DeviceTiles tiles = layout_of(block);
    std::memcpy(host.mutable_data_ptr<std::uint8_t>() + block * sizeof(DeviceTiles), &tiles,
                sizeof(DeviceTiles));
  }
  blocks_ = host.to(addresses_.device());
}

DeviceTiles GpuTiles::layout_of(std::size_t block) const {
  DeviceTiles tiles = device_layout(tile_layout(specs_[block]));
  tiles.blocks =
      reinterpret_cast<const void* const*>(addresses_[static_cast<std::int64_t>(block)].data_ptr());
  tiles.max_blocks = addresses_.size(2);
  tiles.block_tiles = rows_.table().block_rows;
  return tiles;
}

void GpuTiles::reserve(std::size_t sequence) {
  if (rows_.capacity(sequence) < most_tiles_[sequence]) {
    rows_.reserve(sequence, most_tiles_[sequence]);
    write_addresses();
  }
}

void GpuTiles::allow(std::size_t sequence, std::int64_t codes) {
  most_tiles_[sequence] = std::max(most_tiles_[sequence], codes / kTileTokens);
  rows_.allow(most_tiles_[sequence]);
  write_blocks();
}

void GpuTiles::copy(std::size_t from, std::size_t to) {
  rows_.copy(from, to);
  write_addresses();
  if (first_.defined()) {
    const auto row = [&](std::size_t sequence) {
      return first_.select(2, static_cast<std::int64_t>(sequence));
    };
    row(to).copy_(row(from));
  }
}

DeviceTiles GpuTiles::block(std::size_t block, std::size_t sequence) const {
  DeviceTiles tiles = layout_of(block);
  tiles.blocks += static_cast<std::int64_t>(sequence) * tiles.max_blocks;
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

std::int64_t GpuTiles::bytes(std::size_t sequence) const { return rows_.bytes(sequence); }

}  // namespace kvc
