// The factors of coded blocks as one image of bytes for a GPU's memory. Places in it are counted in bytes from its start, so
// that one description serves every copy. Does not use torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/paged_image.h"
#include "runtime/ops/device_factors.h"
#include "runtime/ops/paged_codes.h"

namespace kvc {

struct DeviceImage {
  // What a layer has.
  struct Layer {
    std::int64_t places = 0;  // HeadPlace [2, num_kv_heads]
    int num_code_rows = 0,
        num_mean_rows =
            0;  // of a KV head's keys that are met; or the rotary pairs that are rebuilt
    std::int64_t code_channels = 0, code_weights = 0, code_angles = 0;
    std::int64_t mean_channels = 0, mean_weights = 0, mean_angles = 0;
    std::int64_t key = 0, key_scale = 0, key_offset = 0;  // keys that are rebuilt
    std::int64_t value = 0, value_scale = 0, value_offset = 0;
  };

  DeviceImage(const PagedCodes::Shape& shape, const std::vector<PagedBlock>& blocks);

  PagedImage factors;
  std::string refusal;      // what kernels do not take, or empty: then the rest is there
  std::int64_t blocks = 0;  // DeviceBlock [num_blocks]
  std::int64_t order =
      0;  // int32: the numbers of blocks that have keys, then of those that have values
  std::vector<Layer> layers;
  std::int64_t tile_bytes = 0;  // of 32 tokens
  int num_blocks = 0, num_key_blocks = 0, num_value_blocks = 0;
  int num_coefficients = 0, most_coefficients = 0;  // of all blocks, of one
  int key_width = 0, value_width = 0;  // the most coefficients of one, as kernels pad them
  int most_key_bytes = 0, most_value_bytes = 0;  // of a tile
  bool are_met = false, are_turned = false;      // codes of keys meet the query; before RoPE
  bool has_first = false;                        // a text's first token has a mean of its own

 private:
  void add_blocks(const std::vector<PagedBlock>& all);
  void add_layer(const HeadBlocks& keys, const HeadBlocks& values, std::int64_t layer,
                 std::int64_t num_pairs);
};

}  // namespace kvc
