// Codes of layers that are coded together (CodedStore of runtime/store), for a batch of sequences, in pages of GPU
// memory: tiles of 32 tokens in the layout of runtime/kernels/code_tiles.h. A page has the tiles of all blocks, one block's
// after the other's, so that one allocation and one table serve all.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/store/coded_store.h"

namespace kvc {

class GpuTiles {
 public:
  // pages: of tokens, whole tiles. dtype: of exact rows, and of those of the first token.
  GpuTiles(const KvPlan& plan, const CodedLayers& coded, const GpuPages& pages,
           at::ScalarType dtype);

  // Pages for all codes that the sequence's capacity allows.
  void reserve(std::size_t sequence);
  // Raises the sequence's capacity to that many codes, in whole tiles. Earlier addresses become
  // invalid.
  void allow(std::size_t sequence, std::int64_t codes);
  // Copies sequence `from` to `to`.
  void copy(std::size_t from, std::size_t to);

  // A block's tiles of one sequence, as if it were alone. Its address is valid until allow(), its contents
  // until pages change.
  DeviceTiles block(std::size_t block, std::size_t sequence) const;
  // All blocks' tiles of all sequences, [num_blocks] in GPU memory.
  const DeviceTiles* tables() const { return static_cast<const DeviceTiles*>(blocks_.data_ptr()); }
  // Tiles of all sequences in GPU memory: of the blocks that hold keys, or values.
  RankCodes codes(CodedParts part) const;
  std::int64_t most_tile_bytes(CodedParts part) const;
  std::int64_t bytes(std::size_t sequence) const;

  // Where codes_first_token: the first token as its codes give it, which attention reads apart from the others. `index`: of the
  // layers. key (post-RoPE), value: [num_kv_heads, head_dim].
  void set_first(std::size_t sequence, int index, const at::Tensor& key, const at::Tensor& value);
  // All sequences', as stores of one row each; the address is valid as long as this.
  DeviceRows first_keys(int index) const { return first_rows(index, 0); }
  DeviceRows first_values(int index) const { return first_rows(index, 1); }

  CodedLayers layers;

 private:
  DeviceRows first_rows(int index, std::int64_t part) const;
  std::vector<std::size_t> blocks_of(CodedParts part) const;
  DeviceTiles layout_of(std::size_t block) const;
  static std::int64_t tile_bytes_of(const std::vector<CodedBlock>& specs);
  // After pages changed, and after the tables moved.
  void write_addresses();
  void write_blocks();

  std::vector<CodedBlock> specs_;         // [num_blocks]
  std::vector<std::int64_t> most_tiles_;  // [num_sequences]
  GpuRows rows_;                          // a row has the bytes of a tile of every block
  at::Tensor
      offsets_;  // int64 [num_blocks, 1, 1]: where a block's tiles begin in a page, on the device
  at::Tensor addresses_;  // int64 [num_blocks, num_sequences, pages of the longest]: of them
  at::Tensor blocks_;     // the bytes of DeviceTiles [num_blocks]
  // The first token's rows [num_layers, 2, num_sequences, kv_dim], and their addresses, int64 [num_layers, 2, num_sequences];
  // undefined where it is read as the others are.
  at::Tensor first_, first_addresses_;
};

}  // namespace kvc
