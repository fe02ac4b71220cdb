// The codes of one coded block of one sequence: tiles (runtime/kernels/code_tiles.h) in blocks of a pool.
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

// How the kernels know a block's codes.
TileLayout tile_layout(const CodedBlock& block);

class TileStore {
 public:
  // Error for a pool whose blocks are not whole tiles.
  TileStore(std::shared_ptr<KvPool> pool, const CodedBlock& block);

  std::int64_t num_tokens() const { return num_tiles_ * kTileTokens; }
  // Of the blocks: tokens rounded up to the pool's page_tokens.
  std::int64_t bytes() const { return blocks_ ? blocks_->bytes() : 0; }

  // Coefficients of whole tiles, [n, num_coefficients] float32, under steps [num_coefficients] float32.
  void append(const at::Tensor& z, const at::Tensor& steps);
  // Only tokens `indices`, ascending, whole tiles of them, stay.
  void keep(const at::Tensor& indices, const at::Tensor& steps);
  // Coefficients [num_coefficients] take the place of token's.
  void replace(std::int64_t token, const at::Tensor& z, const at::Tensor& steps);
  // Their values again, of tokens first .. first + count - 1 (whole tiles). float32
  at::Tensor coefficients(std::int64_t first, std::int64_t count, const at::Tensor& steps) const;
  // What the kernels read; valid until the store changes.
  CodeTiles tiles() const;

 private:
  TileLayout layout_;
  std::int64_t block_tiles_ = 0, num_tiles_ = 0;
  std::optional<BlockList> blocks_;  // none where a tile has no bytes
};

}  // namespace kvc
