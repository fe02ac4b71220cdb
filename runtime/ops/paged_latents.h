// Latents of one layer's tokens in the pages of an engine's KV cache, and attention over them in place. Does not use torch.
//
// A page holds page_tokens rows of `rank` numbers, a row per token. A token's slot is page * page_tokens + its row in the page.
// A sequence fills its pages in order, so its row i is that of token i, and i is its position.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/packed_rows.h"
#include "runtime/ops/attention_parts.h"
#include "runtime/ops/paged_codes.h"

namespace kvc {

struct LatentPages {
  std::uint8_t* data = nullptr;
  KvElement element = KvElement::kFloat32;  // or kBFloat16, kFloat16
  std::int64_t stride = 0;                  // bytes from one page to the next
  std::int64_t count = 0, page_tokens = 0;
};

class PagedLatents {
 public:
  struct Shape {
    std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
    std::int64_t rank =
        0;  // numbers of a latent: the first key_rank give keys, the last value_rank give values
    std::int64_t key_rank = 0, value_rank = 0;
    float scale = 1, softcap = 0;  // of scores, as in DecodeAttentionParams
    std::int64_t window = 0;       // a query sees the last `window` tokens, itself included; 0: all
    RopeAngles rope{};             // outlives this
    std::int64_t num_positions = 0;  // of rope
  };
  // float32, copied. What may be null is left out.
  struct Factors {
    const float *key = nullptr, *value = nullptr;  // [kv_dim, key_rank], [kv_dim, value_rank]
    const float *key_offset = nullptr, *value_offset = nullptr;  // [kv_dim], added to rebuilt ones
    const float* key_norm = nullptr;  // [head_dim] of the RMS norm of each head's key; may be null
    float norm_epsilon = 0;
  };
  // The last tokens of sequences are queries, and have exact keys and values.
  struct Sequences {
    const std::int32_t* pages = nullptr;  // [count, stride] page numbers
    std::int64_t stride = 0, count = 0;
    const std::int32_t* past = nullptr;  // [count] tokens before the queries: these have latents
    const std::int32_t* starts =
        nullptr;  // [count + 1] rows of each sequence's queries: from one to the next
  };

  PagedLatents(const Shape& shape, const Factors& factors);

  const Shape& shape() const { return shape_; }
  // Writes rows [count, 1, rank] at slots; a slot below 0 is skipped.
  void store(const LatentPages& pages, const std::int64_t* slots, std::int64_t count,
             const HeadRows& rows) const;
  // Softmax attention of every query to its sequence's latents and to exact tokens up to itself: keys and values
  // [rows, num_kv_heads, head_dim], keys post-RoPE; query and output [rows, num_heads, head_dim]. Sums are of float32. What a
  // sequence gets does not depend on the others, nor on the number of threads.
  void attend(const LatentPages& pages, const Sequences& sequences, const PagedRows& exact,
              const HeadRows& query, const HeadRows& output, const Parallel& parallel) const;

 private:
  // Latents that are read in one go, and where the partial softmaxes of the sequence's queries begin.
  struct Part {
    std::int64_t sequence, first, last, partial;
  };

  std::int64_t kv_dim() const { return shape_.num_kv_heads * shape_.head_dim; }
  // The first token that the query at a position sees.
  std::int64_t first_seen(std::int64_t position) const;
  std::vector<Part> parts_of(const Sequences& sequences) const;
  std::vector<const void*> places(const LatentPages& pages, const std::int32_t* page_numbers,
                                  std::int64_t first, std::int64_t last) const;
  // Keys [last - first, kv_dim] of a part, before offset, norm and RoPE.
  std::vector<float> rebuild_keys(const LatentPages& pages, const void* const* blocks,
                                  std::int64_t first, std::int64_t last) const;
  DecodeAttentionParams params(const HeadRows& query, std::int64_t row,
                               std::vector<float>& numbers) const;
  void attend_part(const LatentPages& pages, const Sequences& sequences, const Part& part,
                   const HeadRows& query, PartialMemory& partials) const;
  // Joins the parts `partials` of a query with the exact rows first .. row of its sequence.
  void join(std::vector<AttentionPartial> partials, std::int64_t first, std::int64_t row,
            const PagedRows& exact, const HeadRows& query, const HeadRows& output) const;

  Shape shape_;
  PackedRows key_;
  std::vector<PackedRows> values_;  // of every KV head
  std::vector<float> key_offset_, value_offset_, key_norm_;
  float norm_epsilon_;
};

}  // namespace kvc
