#include "runtime/store/tile_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "model/parallel.h"

namespace kvc {
namespace {

static_assert(kTileTokens == kQuantisedTokens && kWidestCode == kMaxCodeBits);

}  // namespace

TileLayout tile_layout(const CodedBlock& block) {
  TileLayout layout{.coefficients = {}, .gain = block.gain};
  std::copy(block.coefficients.begin(), block.coefficients.end(), layout.coefficients);
  return layout;
}

TileStore::TileStore(std::shared_ptr<KvPool> pool, const CodedBlock& block)
    : layout_(tile_layout(block)), block_tiles_(pool->page_tokens() / kTileTokens) {
  KVC_CHECK(pool->page_tokens() % kTileTokens == 0,
            "KV cache of coded layers: pages of {} tokens, expected a multiple of {}",
            pool->page_tokens(), kTileTokens);
  if (layout_.bytes() > 0) {
    blocks_.emplace(std::move(pool), block_tiles_ * layout_.bytes());
  }
}

std::uint8_t* TileStore::writable_tile(std::int64_t tile) {
  return reinterpret_cast<std::uint8_t*>(blocks_->writable(tile / block_tiles_)) +
         tile % block_tiles_ * layout_.bytes();
}

void TileStore::append(const at::Tensor& z, const at::Tensor& steps) {
  KVC_CHECK(z.size(1) == layout_.num_coefficients(),
            "KV cache: tokens of {} coefficients, expected {}", z.size(1),
            layout_.num_coefficients());
  const std::int64_t first = num_tokens_, first_tile = first / kTileTokens;
  num_tokens_ += z.size(0);
  if (!blocks_) {
    return;
  }
  blocks_->resize(num_blocks());
  std::vector<std::uint8_t*> tiles;
  for (std::int64_t tile = first_tile; tile < num_tiles(); ++tile) {
    tiles.push_back(writable_tile(tile));
  }
  const at::Tensor rows = z.contiguous();
  const auto* step = steps.const_data_ptr<float>();
  parallel_pieces(num_tiles() - first_tile, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t of_tile = (first_tile + i) * kTileTokens;  // its first token
      const std::int64_t from = std::max(first, of_tile);
      const std::int64_t to = std::min(num_tokens_, of_tile + kTileTokens);
      encode_tokens(layout_, rows.const_data_ptr<float>() + (from - first) * z.size(1), step,
                    from - of_tile, to - from, tiles[static_cast<std::size_t>(i)]);
    }
  });
}

// Values on the levels of codes become the same codes again.
void TileStore::keep(const at::Tensor& indices, const at::Tensor& steps) {
  const at::Tensor stays = coefficients(0, num_tokens(), steps).index_select(0, indices);
  num_tokens_ = 0;
  append(stays, steps);
  if (blocks_) {
    blocks_->resize(num_blocks());
  }
}

void TileStore::replace(std::int64_t token, const at::Tensor& z, const at::Tensor& steps) {
  if (blocks_) {
    encode_token(layout_, z.contiguous().const_data_ptr<float>(), steps.const_data_ptr<float>(),
                 token % kTileTokens, writable_tile(token / kTileTokens));
  }
}

at::Tensor TileStore::coefficients(std::int64_t first, std::int64_t count,
                                   const at::Tensor& steps) const {
  KVC_CHECK(first >= 0 && first % kTileTokens == 0 && count >= 0 && first + count <= num_tokens(),
            "KV cache: codes of tokens {} to {} of {} cannot be read", first, first + count,
            num_tokens());
  const std::int64_t width = layout_.num_coefficients();
  const std::int64_t tiles_read = (count + kTileTokens - 1) / kTileTokens;
  const at::Tensor z = at::empty({tiles_read * kTileTokens, width}, at::kFloat);
  if (width == 0) {
    return z.narrow(0, 0, count);
  }
  auto* to = z.mutable_data_ptr<float>();
  const CodeTiles from = tiles();
  parallel_pieces(tiles_read, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      decode_tile(layout_, from.tile(first / kTileTokens + tile), steps.const_data_ptr<float>(),
                  to + tile * kTileTokens * width);
    }
  });
  return z.narrow(0, 0, count);
}

CodeTiles TileStore::tiles() const {
  return {.blocks = blocks_ ? blocks_->table() : nullptr,
          .block_tiles = block_tiles_,
          .num_tiles = num_tiles(),
          .layout = layout_};
}

}  // namespace kvc
