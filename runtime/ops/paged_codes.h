// Codes of layers that are coded together, in the pages of an engine's KV cache. Does not use torch.
//
// A page holds page_tiles tiles (runtime/kernels/code_tiles.h) of every block, block after block: page_tiles tiles of the
// first, then as many of the second, and so on. A token's slot is page * page_tokens + its place in the page. A sequence
// fills its pages in order, so token i of it is in tile i / kTileTokens, and i is its position.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/kv_rows.h"
#include "runtime/ops/coded_rows.h"

namespace kvc {

// Runs body(first, last) over parts of 0 .. count - 1 on several threads, at least `least` at a time.
using Parallel =
    std::function<void(std::int64_t count, std::int64_t least,
                       const std::function<void(std::int64_t first, std::int64_t last)>& body)>;

struct PageMemory {
  std::uint8_t* data = nullptr;
  std::int64_t stride = 0;  // bytes from one page to the next
  std::int64_t count = 0, page_tiles = 0;
};

// Rows of a tensor [tokens, heads, head_dim]; strides in elements. kFloat32, kBFloat16 or kFloat16.
struct HeadRows {
  void* data = nullptr;
  KvElement element = KvElement::kFloat32;
  std::int64_t token_stride = 0, head_stride = 0;
};

struct PagedRows {
  HeadRows key{}, value{};  // keys post-RoPE
};

class PagedCodes {
 public:
  struct Shape {
    std::int64_t num_layers = 1, num_heads = 0, num_kv_heads = 0, head_dim = 0;
    float scale = 1, softcap = 0;  // of scores, as in DecodeAttentionParams
    std::int64_t window = 0;       // a query sees the last `window` tokens, itself included; 0: all
    RopeAngles rope{};             // outlives this
    std::int64_t num_positions = 0;  // of rope
  };
  // Queries of one token for every sequence.
  struct Sequences {
    const std::int32_t* pages = nullptr;  // [count, stride] page numbers
    std::int64_t stride = 0, count = 0;
    const std::int32_t* tokens = nullptr;  // [count] each at least one, the query's own included
  };

  // Exact keys and values of the last tiles of every sequence, its query's own token included.
  struct OpenTiles {
    const void *keys = nullptr, *values = nullptr;  // [tiles, kTileTokens, num_kv_heads, head_dim]
    KvElement element = KvElement::kFloat32;
    // [count of Sequences, each] tiles, the last one last, without meaning where a sequence has fewer; null: all tokens
    // are read through codes.
    const std::int32_t* numbers = nullptr;
    std::int64_t each = 1;

    // The first token that a query reads exactly behind `tokens` tokens, its own included.
    std::int64_t first_token(std::int64_t tokens) const {
      return numbers == nullptr ? tokens : exact_start(tokens - 1, each);
    }
    // The tiles that a sequence has of these: the last ones of its numbers.
    std::int64_t count(std::int64_t tokens) const {
      return (tokens - first_token(tokens) + kTileTokens - 1) / kTileTokens;
    }
    const std::int32_t* numbers_of(std::int64_t sequence, std::int64_t tokens) const {
      return numbers + (sequence + 1) * each - count(tokens);
    }
  };

  PagedCodes(const Shape& shape, const std::vector<PagedBlock>& blocks);

  const Shape& shape() const { return shape_; }
  // True if every KV head has its keys in one block and its values in one.
  static bool is_complete(const std::vector<PagedBlock>& blocks, std::int64_t num_kv_heads);
  std::int64_t tile_bytes() const { return tile_bytes_; }

  // Codes `count` tokens at their positions and slots; a slot below 0 is skipped. Neighbouring tokens share tiles;
  // tokens that are not neighbours do not. A tile's bytes become zero when its first token is written.
  void store(const PageMemory& pages, const std::int64_t* slots, const std::int64_t* positions,
             std::int64_t count, const std::vector<PagedRows>& layers,
             const Parallel& parallel) const;
  // Tokens first .. first + count - 1 of a sequence with these pages, as attention sees them; first is a multiple of
  // kTileTokens.
  void read(const PageMemory& pages, const std::int32_t* page_numbers, std::int64_t first,
            std::int64_t count, std::int64_t layer, const PagedRows& to,
            const Parallel& parallel) const;
  // Softmax attention; what a sequence gets does not depend on the others, nor on the number of threads. query and output
  // [sequences, num_heads, head_dim]
  void attend(const PageMemory& pages, const Sequences& sequences, const OpenTiles& open,
              std::int64_t layer, const HeadRows& query, const HeadRows& output,
              const Parallel& parallel) const;

 private:
  class AttentionPass;

  // Attention of a sequence's query to its open tiles from token `first` on.
  void attend_open(const OpenTiles& open, std::int64_t sequence, std::int64_t first,
                   std::int64_t last, const HeadRows& query, const AttentionPartial& partial) const;

  // The blocks that hold some KV heads' keys and values.
  struct Heads {
    std::size_t keys, values;  // the same one, or two
    std::int64_t first = 0, count = 1;
    std::int64_t in_values = 0;  // number of the first head among those of `values`
  };
  static std::vector<Heads> heads_of(const std::vector<PagedBlock>& blocks);

  // Pages of a block's tiles, from the page of token `first` to that of token `last` - 1.
  std::vector<const void*> places(const PageMemory& pages, const std::int32_t* page_numbers,
                                  std::size_t block, std::int64_t first, std::int64_t last) const;
  // Tokens of one tile.
  void store_run(const PageMemory& pages, const std::int64_t* slots, const std::int64_t* positions,
                 std::int64_t first, std::int64_t last, std::size_t block,
                 const std::vector<PagedRows>& layers) const;

  Shape shape_;
  std::vector<CodedRows> blocks_;
  std::vector<std::int64_t> offsets_;  // of the blocks in a page, for one tile a page
  std::vector<Heads> heads_;
  std::int64_t tile_bytes_ = 0;
};

}  // namespace kvc
