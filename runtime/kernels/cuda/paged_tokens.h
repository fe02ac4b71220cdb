// Tokens as codes in the pages of a cache on the GPU: coded when they are written, read again for prompts, and what attention
// over codes needs to know of pages. What an engine's page holds stands in runtime/ops/paged_codes.h; kvrun's pages are those of
// DeviceTiles.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/device_rope.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

constexpr int kMostPagedLayers = 32;  // that are coded together

// A coded block of several layers (PagedBlock of runtime/ops/coded_rows.h): n channels and k coefficients of a token.
// Arrays of float32 in GPU memory, as places in bytes from the start of the blocks' image.
struct DeviceBlock {
  DeviceTiles tiles{};           // its layout, without blocks
  std::int64_t page_offset = 0;  // where its tiles begin in a page of one tile
  int num_heads = 1, first_head = 0;
  bool has_keys = true, has_values = true;
  bool rotated = false;              // coefficients are of keys post-RoPE
  int channels = 0;                  // n
  int first_coefficient = 0;         // among those of all blocks
  bool encoder_float16 = false;      // E's numbers
  std::int64_t encoder = 0;          // E transposed, [n, k]
  std::int64_t decoder = 0;          // F times the steps, transposed, [k, n]
  std::int64_t mean = 0, first = 0;  // [n]; first: of a text's first token, 0: the mean
  std::int64_t steps = 0;            // [k]
};

// The block that has a KV head's keys, or its values, of a layer, and the first of their head_dim channels there.
struct HeadPlace {
  int block, channel;
};

struct DevicePages {
  std::uint8_t* data = nullptr;  // 4-byte aligned, as the stride
  std::int64_t stride = 0;       // bytes from one page to the next
  int count = 0, page_tiles = 0;
};

// What all launches below share. Pointers to GPU memory.
struct PagedBlocks {
  const std::uint8_t* image = nullptr;
  const DeviceBlock* blocks = nullptr;  // [num_blocks], in the image
  int num_blocks = 0;
  int num_coefficients = 0, most_coefficients = 0;  // of all blocks, of one
  int num_layers = 1, num_kv_heads = 0, head_dim = 0;
  DeviceRope rope{};  // of the layer that is read, or of all
};

// Rows [tokens, heads, head_dim] of 16-bit numbers; strides in numbers.
struct EngineRows {
  const void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
};

// z = E (y - mean) of every token: y are its keys, before RoPE or, for rotated coefficients, after it, and its values.
struct EncodeTokens {
  PagedBlocks of{};
  EngineRows keys[kMostPagedLayers] = {}, values[kMostPagedLayers] = {};  // keys post-RoPE
  DeviceRope ropes[kMostPagedLayers] = {};                                // the layers'
  DeviceElement element = DeviceElement::kBFloat16;                       // or float16
  const std::int64_t* positions = nullptr;                                // [count]
  std::int64_t num_positions = 0;  // of the ropes; positions outside are read as the nearest
  int count = 0;
  float* z = nullptr;  // [count, of.num_coefficients]
};

// Coefficients become codes at slots of an engine's pages: page * page tokens + place in the page. Slots below 0 and behind the
// last page are skipped. Tokens of a tile are neighbours; when its first token is written, the rest of the tile becomes zero.
// Or, where there are tables, in tiles of one sequence, as encode_tile() of runtime/kernels/code_tiles.h makes them: the same
// bytes but for what rounding alone decides.
struct StoreCodes {
  PagedBlocks of{};
  DevicePages pages{};
  const std::int64_t* slots = nullptr;  // [count]
  const DeviceTiles* tables = nullptr;  // [of.num_blocks]; slots and pages are not used then
  int sequence = 0, first_tile = 0;     // of tables: where the first token's tile lies
  int count = 0;
  const float* z = nullptr;  // [count, of.num_coefficients]
};

// Tokens first .. first + count - 1 of every sequence as attention sees them; first is a multiple of 32.
struct ReadTokens {
  PagedBlocks of{};
  DevicePages pages{};
  const std::int32_t* page_numbers = nullptr;  // [num_sequences, page_stride]
  std::int64_t page_stride = 0;
  int num_sequences = 1, first = 0, count = 0;
  const HeadPlace* places = nullptr;  // [2, num_kv_heads] of a layer: keys, values
  DeviceElement element = DeviceElement::kBFloat16;
  void *keys = nullptr,
       *values = nullptr;  // [num_sequences, count, num_kv_heads, head_dim], keys post-RoPE
};

// What attention over codes reads of a sequence of `tokens` tokens whose last one asks.
struct CodedSpan {
  int window = 0;                // the query sees as many last tokens, itself included; 0: all
  int exact_tiles = 1;           // read exactly: the query's own, and those before; 0: none
  bool has_first = false;        // token 0 is read apart from the others (DeviceBlock::first)
  int most_tokens = 0x7FFFFFFF;  // scratch memory is for as many; a longer sequence is cut

  // What is read of a sequence's tokens.
  KVC_HOST_DEVICE int within(int tokens) const {
    return tokens < most_tokens ? tokens : most_tokens;
  }
  KVC_HOST_DEVICE int end(int tokens) const {
    const int tiles = (tokens - 1) / kScaledRows + 1 - exact_tiles;
    return exact_tiles == 0 ? tokens : (tiles > 0 ? tiles : 0) * kScaledRows;
  }
  KVC_HOST_DEVICE int hidden(int tokens) const {
    return window > 0 && tokens > window ? tokens - window : 0;
  }
  KVC_HOST_DEVICE int begin(int tokens) const {
    const int first = hidden(tokens) == 0 && has_first ? 1 : hidden(tokens);
    return first < end(tokens) ? first : end(tokens);
  }
  KVC_HOST_DEVICE bool reads_first(int tokens) const {
    return has_first && hidden(tokens) == 0 && end(tokens) > 0;
  }
};

// Addresses for kernels of attention over codes: of all blocks' tiles, and which tokens they read.
struct PlacePages {
  PagedBlocks of{};
  DevicePages pages{};
  CodedSpan span{};
  const std::int32_t* page_numbers = nullptr;  // [num_sequences, page_stride]
  std::int64_t page_stride = 0;
  const std::int32_t* tokens = nullptr;  // [num_sequences]
  int num_sequences = 0;
  int most_pages = 0;                   // of a sequence
  const std::int32_t* order = nullptr;  // [num_tiles] numbers of blocks
  int num_tiles = 0;
  DeviceTiles* tiles = nullptr;        // [num_tiles]
  const void** addresses = nullptr;    // [num_tiles, num_sequences, most_pages]
  std::int32_t* num_rows = nullptr;    // [num_sequences]
  std::int32_t* first_rows = nullptr;  // [num_sequences]
};

// Attention over exact rows, in a part for each tile: those of the query's last tiles, and in the first part token 0 where it
// is read apart.
struct AttendOpen {
  CodedSpan span{};
  const std::int32_t* tokens = nullptr;  // [num_sequences]
  // [num_sequences, span.exact_tiles] tiles, the query's own last, without meaning where a sequence has fewer; null: no tiles
  const std::int32_t* numbers = nullptr;
  const void *keys = nullptr, *values = nullptr;  // [tiles, 32, num_kv_heads, head_dim]
  int num_tiles = 0;
  const void *first_keys = nullptr,
             *first_values = nullptr;  // [num_sequences, num_kv_heads, head_dim]; has_first
  const void* query = nullptr;         // [num_sequences, num_heads, head_dim] post-RoPE
  void* query_float16 = nullptr;  // the same in float16, in which kernels meet codes; null: nowhere
  DeviceElement element = DeviceElement::kBFloat16;  // of all of these
  int num_sequences = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1, softcap = 0;
  DevicePartials partials{};  // of num_parts(), width head_dim

  KVC_HOST_DEVICE int num_parts() const { return span.exact_tiles > 0 ? span.exact_tiles : 1; }
};

}  // namespace kvc
