// The codes of layers that are coded together (CodedStore of runtime/store), of a batch of sequences, in pages of GPU
// memory: tiles of 32 tokens, the bytes of runtime/kernels/code_tiles.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/store/coded_store.h"

namespace kvc {

class GpuTiles {
 public:
  // pages: of tokens, whole tiles.
  GpuTiles(const KvPlan& plan, const CodedLayers& coded, const GpuPages& pages);

  // Pages for all codes that the sequence's capacity allows.
  void reserve(std::size_t sequence);
  // The sequence may have so many codes, whole tiles of them. Addresses of before hold no longer.
  void allow(std::size_t sequence, std::int64_t codes);
  // Sequence `to` has what `from` has.
  void copy(std::size_t from, std::size_t to);

  // A block's tiles of one sequence, as if it were alone. Its address holds until allow(), what is in it until
  // pages come.
  DeviceTiles block(std::size_t block, std::size_t sequence) const;
  // All sequences', of each block, in GPU memory. [num_blocks]
  const DeviceTiles* blocks() const;
  // [count, bytes of a tile] uint8 of a block, as they lie in memory or a copy.
  at::Tensor read(std::size_t block, std::size_t sequence, std::int64_t first,
                  std::int64_t count) const {
    return rows_[block].read(sequence, first, count).view(at::kByte);
  }
  TileLayout layout(std::size_t block) const { return tile_layout(specs_[block]); }

  std::int64_t most_coefficients() const;  // of a block
  std::int64_t bytes(std::size_t sequence) const;

  CodedLayers layers;

 private:
  DeviceTiles layout_of(std::size_t block) const;
  void write_blocks(at::Device device);

  std::vector<CodedBlock> specs_;         // [num_blocks]
  std::vector<std::int64_t> most_tiles_;  // [num_sequences]
  std::vector<GpuRows> rows_;             // [num_blocks]: a row is a tile
  at::Tensor blocks_;                     // the bytes of DeviceTiles [num_blocks]
};

}  // namespace kvc
