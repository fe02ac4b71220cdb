// Tokens in an engine's pages, and what plain loops make of them: two KV heads of 32 channels, 12 rotary pairs; keys of the
// first head before RoPE, of the second one after it, values of both in one block.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/cuda/paged_image.h"
#include "runtime/kernels/cuda/paged_tokens.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"

namespace kvc::testing {

inline constexpr int kHeads = 2, kDim = 32, kPairs = 12, kTokens = 70, kPages = 5, kPageTiles = 2;
inline constexpr int kPageTokens = kPageTiles * static_cast<int>(kTileTokens);

// A block's factors on the CPU.
struct CaseBlock {
  DeviceBlock device;
  TileLayout layout;
  std::vector<float> encoder, decoder, mean, first, steps;  // as DeviceBlock has them

  int n() const { return device.channels; }
  int k() const { return device.tiles.num_coefficients; }
  const std::vector<float>& mean_of(int position) const {
    return position == 0 && !first.empty() ? first : mean;
  }
};

class PagedCase {
 public:
  PagedCase(KernelBackend& backend, DeviceElement element);

  // Coefficients of all tokens and a block, by definition. [kTokens, k]
  std::vector<float> coefficients_of(const CaseBlock& block) const;
  // A token's keys or values of a head from `levels`. [kDim]
  std::vector<float> decoded(int token, bool value, int head) const;
  std::uint8_t* tile_at_place(const CaseBlock& block, int tile) const;

  DeviceElement element;
  std::vector<std::uint16_t> rows;  // [kTokens, keys and values, kHeads, kDim]
  std::vector<CaseBlock> blocks;
  std::vector<std::int32_t> table = {3, 1};  // pages of the sequence
  PagedBlocks of;
  DevicePages pages;
  std::vector<std::vector<float>>
      levels;  // of blocks: levels times gains of all tokens, [kTokens, k]

 private:
  void add_block(bool keys, bool rotated, int first_head, int num_heads, bool gain);
  // [kDim] turned to a position by RoPE, or back from it.
  std::vector<float> turned(std::vector<float> row, int position, bool back) const;
  std::vector<float> engine_row(int token, bool value, int head) const;
  std::vector<float> mean_of(const CaseBlock& block, int position) const;

  CaseAngles angles_;
  PagedImage image_;
  std::int64_t tile_bytes_ = 0;
};

}  // namespace kvc::testing
