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

void TileStore::append(const at::Tensor& z, const at::Tensor& steps) {
  const std::int64_t first = num_tiles_, count = z.size(0) / kTileTokens;
  KVC_CHECK(z.size(0) % kTileTokens == 0 && z.size(1) == layout_.num_coefficients(),
            "KV cache: {} tokens of {} coefficients, expected whole tiles of {}", z.size(0),
            z.size(1), layout_.num_coefficients());
  num_tiles_ += count;
  if (!blocks_) {
    return;
  }
  blocks_->resize((num_tiles_ + block_tiles_ - 1) / block_tiles_);
  std::vector<std::uint8_t*> tiles;
  for (std::int64_t tile = first; tile < num_tiles_; ++tile) {
    tiles.push_back(reinterpret_cast<std::uint8_t*>(blocks_->writable(tile / block_tiles_)) +
                    tile % block_tiles_ * layout_.bytes());
  }
  const at::Tensor rows = z.contiguous();
  const auto* from = rows.const_data_ptr<float>();
  const auto* step = steps.const_data_ptr<float>();
  parallel_pieces(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      encode_tile(layout_, from + tile * kTileTokens * z.size(1), step,
                  tiles[static_cast<std::size_t>(tile)]);
    }
  });
}

// Values on the levels of codes become the same codes again.
void TileStore::keep(const at::Tensor& indices, const at::Tensor& steps) {
  const at::Tensor stays = coefficients(0, num_tokens(), steps).index_select(0, indices);
  num_tiles_ = 0;
  append(stays, steps);
  if (blocks_) {
    blocks_->resize((num_tiles_ + block_tiles_ - 1) / block_tiles_);
  }
}

void TileStore::replace(std::int64_t token, const at::Tensor& z, const at::Tensor& steps) {
  if (!blocks_) {
    return;
  }
  const std::int64_t tile = token / kTileTokens;
  const at::Tensor all = coefficients(tile * kTileTokens, kTileTokens, steps);
  all.select(0, token % kTileTokens).copy_(z);
  encode_tile(layout_, all.const_data_ptr<float>(), steps.const_data_ptr<float>(),
              reinterpret_cast<std::uint8_t*>(blocks_->writable(tile / block_tiles_)) +
                  tile % block_tiles_ * layout_.bytes());
}

at::Tensor TileStore::coefficients(std::int64_t first, std::int64_t count,
                                   const at::Tensor& steps) const {
  KVC_CHECK(first >= 0 && first % kTileTokens == 0 && count % kTileTokens == 0 &&
                first + count <= num_tokens(),
            "KV cache: codes of tokens {} to {} of {} cannot be read", first, first + count,
            num_tokens());
  const std::int64_t width = layout_.num_coefficients();
  at::Tensor z = at::empty({count, width}, at::kFloat);
  if (width == 0) {
    return z;
  }
  auto* to = z.mutable_data_ptr<float>();
  const CodeTiles from = tiles();
  parallel_pieces(count / kTileTokens, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      decode_tile(layout_, from.tile(first / kTileTokens + tile), steps.const_data_ptr<float>(),
                  to + tile * kTileTokens * width);
    }
  });
  return z;
}

CodeTiles TileStore::tiles() const {
  return {.blocks = blocks_ ? blocks_->table() : nullptr,
          .block_tiles = block_tiles_,
          .num_tiles = num_tiles_,
          .layout = layout_};
}

}  // namespace kvc
