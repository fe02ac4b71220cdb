// Channels of coded blocks and where their tiles lie in pages: what kernels that code and read tokens share.
#pragma once

#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/paged_tokens.h"

namespace kvc {

constexpr int kPagedTokens = 32;  // of a tile, and of a block of threads
constexpr int kStagedRows = 64;   // channels or coefficients in shared memory at a time

KVC_HOST_DEVICE const float* image_floats(const PagedBlocks& of, std::int64_t place) {
  return reinterpret_cast<const float*>(of.image + place);
}

// Which number of a token a channel of a block is.
struct BlockChannel {
  int layer, head, in_head;  // head: of the model's
  bool is_key;
};
KVC_HOST_DEVICE BlockChannel block_channel(const PagedBlocks& of, const DeviceBlock& block,
                                           int channel) {
  const int part = block.num_heads * of.head_dim;
  const int layer_channels = block.has_keys && block.has_values ? 2 * part : part;
  const int in_layer = channel % layer_channels, in_part = in_layer % part;
  return {channel / layer_channels, block.first_head + in_part / of.head_dim, in_part % of.head_dim,
          block.has_keys && in_layer < part};
}

// A channel's partner under RoPE, as a distance; 0: it stays as it is.
KVC_HOST_DEVICE int partner_distance(const DeviceRope& rope, int in_head) {
  if (in_head >= 2 * rope.num_pairs) {
    return 0;
  }
  if (rope.interleaved) {
    return in_head % 2 == 0 ? 1 : -1;
  }
  return in_head < rope.num_pairs ? rope.num_pairs : -rope.num_pairs;
}
// The channel's number turned to a position, whose partner has the number `other`, or turned back from it.
KVC_HOST_DEVICE float turned_number(const DeviceRope& rope, int in_head, std::int64_t position,
                                    float own, float other, bool back) {
  const int pair = rope.interleaved ? in_head / 2 : in_head % rope.num_pairs;
  const std::int64_t angle = position * rope.num_pairs + pair;
  const float cos = rope.cos[angle],
              sin = in_head == first_of_pair(rope, pair) ? -rope.sin[angle] : rope.sin[angle];
  if (!back) {
    return own * cos + other * sin;
  }
  return (own * cos - other * sin) / (cos * cos + sin * sin);  // the inverse, whatever their factor
}

// The mean of a block's channel at a position. rope: its layer's
KVC_HOST_DEVICE float mean_at(const PagedBlocks& of, const DeviceRope& rope,
                              const DeviceBlock& block, const BlockChannel& place, int channel,
                              std::int64_t position) {
  const float* mean =
      image_floats(of, position == 0 && block.first != 0 ? block.first : block.mean);
  const int distance = partner_distance(rope, place.in_head);
  if (!block.rotated || !place.is_key || distance == 0) {
    return mean[channel];
  }
  return turned_number(rope, place.in_head, position, mean[channel], mean[channel + distance],
                       false);
}

KVC_HOST_DEVICE std::uint8_t* tile_in_pages(const DevicePages& pages, const DeviceBlock& block,
                                            std::int64_t page, int in_page) {
  return pages.data + page * pages.stride + block.page_offset * pages.page_tiles +
         static_cast<std::int64_t>(in_page) * tile_bytes(block.tiles);
}

// sums[t] += weight * staged[t] of 32 tokens, in eights up to `count`.
KVC_HOST_DEVICE void add_tokens(const float* staged, float weight, int count,
                                float (&sums)[kPagedTokens]) {
  KVC_UNROLL
  for (int eight = 0; eight < kPagedTokens; eight += 8) {
    if (eight < count) {
      KVC_UNROLL
      for (int t = eight; t < eight + 8; ++t) {
        sums[t] += weight * staged[t];
      }
    }
  }
}

}  // namespace kvc
