#include "runtime/ops/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/rank_space_attention.h"
#include "runtime/ops/attention_parts.h"
#include "runtime/ops/head_rows.h"

namespace kvc {
namespace {

// Rows of a sequence that are read in one go.
constexpr std::int64_t kRowsTogether = 512;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Rows of a part's keys.
struct Task {
  std::int64_t sequence, first, last;
};

// A sequence's query in float32; owns what `params` points to.
struct QueryNumbers {
  std::vector<float> numbers;
  DecodeAttentionParams params;

  QueryNumbers(const LatentQueries& queries, std::int64_t sequence)
      : numbers(at(queries.num_heads * queries.head_dim)),
        params{.query = numbers.data(),
               .num_heads = queries.num_heads,
               .num_kv_heads = queries.num_kv_heads,
               .head_dim = queries.head_dim,
               .scale = queries.scale,
               .softcap = queries.softcap} {
    for (std::int64_t head = 0; head < queries.num_heads; ++head) {
      load_row(queries.query, sequence, head, queries.head_dim,
               numbers.data() + head * queries.head_dim);
    }
  }
  QueryNumbers(const QueryNumbers&) = delete;
};

AttentionPartial partial_of(float* scales, float* output, std::int64_t num_heads) {
  return {.max = scales, .sum = scales + num_heads, .output = output, .scores = {}};
}

}  // namespace

const void* SequenceRows::of(std::int64_t sequence, std::int64_t row) const {
  const std::int64_t place = sequence * stride + row * width;
  return static_cast<const std::uint8_t*>(data) + place * element_bits(element) / 8;
}

void attend_latents(const LatentQueries& queries, const LatentPart& part, float* sums,
                    float* scales, const Parallel& parallel) {
  const std::int64_t heads = queries.num_heads, size = heads * (part.rank + 2);
  std::vector<Task> tasks;
  std::int64_t rows = 0;
  for (std::int64_t sequence = 0; sequence < queries.count; ++sequence) {
    const std::int64_t first = std::max<std::int64_t>(0, part.seen[sequence].first - part.first);
    const std::int64_t last = std::min(part.keys.rows, part.seen[sequence].last - part.first);
    rows += std::max<std::int64_t>(0, last - first);
    for_each_part(first, last, kRowsTogether, [&](std::int64_t begin, std::int64_t end) {
      tasks.push_back({sequence, begin, end});
    });
  }
  const auto count = static_cast<std::int64_t>(tasks.size());
  std::vector<float> memory(at(count * size));
  const auto partial = [&](std::int64_t task) {
    float* from = memory.data() + task * size;
    return partial_of(from, from + 2 * heads, heads);
  };
  const auto attend = [&](std::int64_t index) {
    const Task& task = tasks[at(index)];
    QueryNumbers query(queries, task.sequence);
    query.params.raw_keys.rope = part.rope;
    const void* keys = part.keys.of(task.sequence);
    const void* latents = part.latents.of(task.sequence, part.first);
    const std::int64_t num_latents = part.latents.rows - part.first;
    const RankSpaceSegment segment{
        .keys = {.key = {&keys, part.keys.rows, part.keys.rows, part.keys.element},
                 .first_position = part.first_position,
                 .raw_key = true},
        .latents = {&latents, num_latents, num_latents, part.latents.element},
        .width = part.latents.width,
        .first_channel = part.latents.width - part.rank,
        .rank = part.rank};
    const AttentionPartial own = partial(index);
    std::fill_n(own.max, heads, -INFINITY);
    add_rank_space_attention(query.params, segment, task.first, task.last, own);
  };
  const std::int64_t products = rows * heads * (queries.head_dim + part.rank);
  parallel(count, least_together(count, products), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      attend(index);
    }
  });
  for (std::int64_t index = 0; index < count; ++index) {
    const std::int64_t sequence = tasks[at(index)].sequence;
    add_partial(
        partial(index), heads, part.rank,
        partial_of(scales + sequence * 2 * heads, sums + sequence * heads * part.rank, heads));
  }
}

void join_exact(const LatentQueries& queries, const ExactRows& rows, const float* values,
                const float* scales, const HeadRows& output, const Parallel& parallel) {
  const std::int64_t heads = queries.num_heads, channels = heads * queries.head_dim;
  const auto join = [&](std::int64_t sequence) {
    const QueryNumbers query(queries, sequence);
    const void* keys = rows.keys.of(sequence);
    const void* exact = rows.values.of(sequence);
    const KvSegment segment{
        .key = {&keys, rows.keys.rows, rows.keys.rows, rows.keys.element},
        .value = {&exact, rows.values.rows, rows.values.rows, rows.values.element}};
    std::vector<float> memory(at(3 * (channels + 2 * heads))), joined(at(channels));
    std::vector<AttentionPartial> parts;
    const auto next = [&] {
      float* from =
          memory.data() + static_cast<std::int64_t>(parts.size()) * (channels + 2 * heads);
      parts.push_back(partial_of(from, from + 2 * heads, heads));
      return parts.back();
    };
    const float* max = scales + sequence * 2 * heads;
    if (max[0] > -INFINITY) {
      const AttentionPartial latents = next();
      for (std::int64_t head = 0; head < heads; ++head) {
        latents.max[head] = max[head] + std::log(max[heads + head]);
        latents.sum[head] = 1;
      }
      std::copy_n(values + sequence * channels, channels, latents.output);
    }
    for (const RowSpan* span = rows.seen + 2 * sequence; span < rows.seen + 2 * sequence + 2;
         ++span) {
      if (span->first < span->last) {
        decode_attention_partial(query.params, segment, span->first, span->last, next());
      }
    }
    combine_partials(parts.data(), static_cast<std::int64_t>(parts.size()), heads, queries.head_dim,
                     joined.data());
    for (std::int64_t head = 0; head < heads; ++head) {
      store_row(output, sequence, head, queries.head_dim, joined.data() + head * queries.head_dim);
    }
  };
  const std::int64_t products = 2 * rows.keys.rows * channels;
  parallel(queries.count, least_together(1, products), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t sequence = begin; sequence < end; ++sequence) {
      join(sequence);
    }
  });
}

}  // namespace kvc
