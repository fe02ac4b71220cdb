// The codes of one coded block of one sequence: tiles (runtime/kernels/code_tiles.h) in blocks of a pool. The last
// tile may be filled in part.
// Copies share blocks until one of them writes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/kv_sources.h"
#include "runtime/kernels/code_tiles.h"
#include "runtime/store/block_list.h"
#include "runtime/store/kv_pool.h"

namespace kvc {

// The kernels' description of a block's codes.
TileLayout tile_layout(const CodedBlock& block);

class TileStore {
 public:
  // Error if the pool's blocks are not whole tiles.
  TileStore(std::shared_ptr<KvPool> pool, const CodedBlock& block);

  std::int64_t num_tokens() const { return num_tokens_; }
  // Bytes of the blocks: tokens rounded up to the pool's page_tokens.
  std::int64_t bytes() const { return blocks_ ? blocks_->bytes() : 0; }

  // Appends coefficients, [n, num_coefficients] float32, with steps [num_coefficients] float32.
  void append(const at::Tensor& z, const at::Tensor& steps);
  // Keeps only tokens `indices` (ascending).
  void keep(const at::Tensor& indices, const at::Tensor& steps);
  // Replaces a token's coefficients by these [num_coefficients].
  void replace(std::int64_t token, const at::Tensor& z, const at::Tensor& steps);
  // Values of tokens first .. first + count - 1; `first` begins a tile. float32
  at::Tensor coefficients(std::int64_t first, std::int64_t count, const at::Tensor& steps) const;
  // The kernels' view; valid until the store changes.
  CodeTiles tiles() const;

 private:
  std::int64_t num_tiles() const { return (num_tokens_ + kTileTokens - 1) / kTileTokens; }
  std::int64_t num_blocks() const { return (num_tiles() + block_tiles_ - 1) / block_tiles_; }
  std::uint8_t* writable_tile(std::int64_t tile);

  TileLayout layout_;
  std::int64_t block_tiles_ = 0, num_tokens_ = 0;
  std::optional<BlockList> blocks_;  // none if a tile has no bytes
};

}  // namespace kvc
