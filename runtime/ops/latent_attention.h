// Attention of one query token of every sequence over latents and exact rows beside them, in an engine's tensors. Keys are
// rebuilt by the engine, some latents at a time; values are summed as latents. Does not use torch.
#pragma once

#include <cstdint>

#include "runtime/ops/paged_codes.h"

namespace kvc {

struct LatentQueries {
  HeadRows query{};  // [count, num_heads, head_dim] post-RoPE
  std::int64_t count = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1, softcap = 0;  // of scores, as in DecodeAttentionParams
};

// Rows of every sequence, [sequences, rows, width] with neighbouring numbers and rows; `stride` in elements.
struct SequenceRows {
  const void* data = nullptr;
  KvElement element = KvElement::kFloat32;
  std::int64_t stride = 0, rows = 0, width = 0;

  const void* of(std::int64_t sequence, std::int64_t row = 0) const;
};

// Rows first .. last - 1, of one sequence.
struct RowSpan {
  std::int64_t first = 0, last = 0;
};

// Latents from row `first` on, and the keys that were rebuilt from them.
struct LatentPart {
  SequenceRows latents{},
      keys{};  // keys: of num_kv_heads * head_dim, before RoPE, with bias and norm
  std::int64_t first = 0;
  std::int64_t first_position = 0;  // of the first key
  std::int64_t rank = 0;            // last numbers of a latent that make values
  const RowSpan* seen =
      nullptr;        // [sequences] rows of `latents` that a query sees, other parts' too
  RopeAngles rope{};  // of all positions
};

// Adds a part to the softmax of those before: sums [sequences, num_heads, rank] of exp(score - max) * latent, and `scales`
// [sequences, 2, num_heads], max and sum of exp(score - max). Before the first part, max is -infinity and the rest zero.
// What a sequence gets does not depend on the number of threads.
void attend_latents(const LatentQueries& queries, const LatentPart& part, float* sums,
                    float* scales, const Parallel& parallel);

// Exact keys (post-RoPE) and values of the tokens before and behind the latents.
struct ExactRows {
  SequenceRows keys{}, values{};  // of num_kv_heads * head_dim
  const RowSpan* seen = nullptr;  // [sequences, 2] rows that a query sees
};

// Joins them with the latents, whose softmax has `scales` as above and the values [sequences, num_heads, head_dim]. output
// [sequences, num_heads, head_dim]. Every query sees a latent or a row.
void join_exact(const LatentQueries& queries, const ExactRows& rows, const float* values,
                const float* scales, const HeadRows& output, const Parallel& parallel);

}  // namespace kvc
