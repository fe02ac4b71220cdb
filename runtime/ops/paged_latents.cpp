#include "runtime/ops/paged_latents.h"

#include <algorithm>
#include <cmath>

#include "runtime/kernels/rank_space_attention.h"
#include "runtime/ops/head_rows.h"

namespace kvc {
namespace {

// Tokens of a sequence that are read in one go.
constexpr std::int64_t kTokensTogether = 512;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Empty without numbers.
std::vector<float> copy_of(const float* numbers, std::int64_t count) {
  return numbers == nullptr ? std::vector<float>() : std::vector<float>(numbers, numbers + count);
}
const float* or_null(const std::vector<float>& numbers) {
  return numbers.empty() ? nullptr : numbers.data();
}

}  // namespace

PagedLatents::PagedLatents(const Shape& shape, const Factors& factors)
    : shape_(shape),
      key_(factors.key, shape.num_kv_heads * shape.head_dim, shape.key_rank),
      key_offset_(copy_of(factors.key_offset, kv_dim())),
      value_offset_(copy_of(factors.value_offset, kv_dim())),
      key_norm_(copy_of(factors.key_norm, shape.head_dim)),
      norm_epsilon_(factors.norm_epsilon) {
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
    values_.emplace_back(factors.value + head * shape.head_dim * shape.value_rank, shape.head_dim,
                         shape.value_rank);
  }
}

void PagedLatents::store(const LatentPages& pages, const std::int64_t* slots, std::int64_t count,
                         const HeadRows& rows) const {
  std::vector<float> numbers(at(shape_.rank));
  for (std::int64_t i = 0; i < count; ++i) {
    if (slots[i] >= 0) {
      load_row(rows, i, 0, shape_.rank, numbers.data());
      store_row(
          {pages.data + slots[i] / pages.page_tokens * pages.stride, pages.element, shape_.rank, 0},
          slots[i] % pages.page_tokens, 0, shape_.rank, numbers.data());
    }
  }
}

std::int64_t PagedLatents::first_seen(std::int64_t position) const {
  return shape_.window == 0 ? 0 : std::max<std::int64_t>(0, position - shape_.window + 1);
}

std::vector<PagedLatents::Part> PagedLatents::parts_of(const Sequences& sequences) const {
  std::vector<Part> parts;
  std::int64_t partial = 0;
  for (std::int64_t sequence = 0; sequence < sequences.count; ++sequence) {
    const std::int64_t queries = sequences.starts[sequence + 1] - sequences.starts[sequence];
    const std::int64_t past = queries == 0 ? 0 : sequences.past[sequence];
    for_each_part(first_seen(past), past, kTokensTogether,
                  [&](std::int64_t first, std::int64_t last) {
                    parts.push_back({sequence, first, last, partial});
                    partial += queries;
                  });
  }
  return parts;
}

std::vector<const void*> PagedLatents::places(const LatentPages& pages,
                                              const std::int32_t* page_numbers, std::int64_t first,
                                              std::int64_t last) const {
  std::vector<const void*> places;
  for (std::int64_t page = first / pages.page_tokens; page * pages.page_tokens < last; ++page) {
    places.push_back(pages.data + page_numbers[page] * pages.stride);
  }
  return places;
}

std::vector<float> PagedLatents::rebuild_keys(const LatentPages& pages, const void* const* blocks,
                                              std::int64_t first, std::int64_t last) const {
  const std::int64_t begin = first / pages.page_tokens * pages.page_tokens;
  std::vector<float> latents(at((last - first) * shape_.key_rank)),
      keys(at((last - first) * kv_dim()));
  for (std::int64_t token = first; token < last; ++token) {
    const std::int64_t row = token - begin;
    load_row({const_cast<void*>(blocks[row / pages.page_tokens]), pages.element, shape_.rank, 0},
             row % pages.page_tokens, 0, shape_.key_rank,
             latents.data() + (token - first) * shape_.key_rank);
  }
  key_.multiply(latents.data(), last - first, keys.data(), kv_dim());
  return keys;
}

DecodeAttentionParams PagedLatents::params(const HeadRows& query, std::int64_t row,
                                           std::vector<float>& numbers) const {
  for (std::int64_t head = 0; head < shape_.num_heads; ++head) {
    load_row(query, row, head, shape_.head_dim, numbers.data() + head * shape_.head_dim);
  }
  return {.query = numbers.data(),
          .num_heads = shape_.num_heads,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .scale = shape_.scale,
          .softcap = shape_.softcap,
          .raw_keys = {.rope = shape_.rope,
                       .bias = or_null(key_offset_),
                       .norm = or_null(key_norm_),
                       .norm_epsilon = norm_epsilon_}};
}

void PagedLatents::attend_part(const LatentPages& pages, const Sequences& sequences,
                               const Part& part, const HeadRows& query,
                               PartialMemory& partials) const {
  const std::int64_t heads = shape_.num_heads, count = part.last - part.first;
  const auto blocks =
      places(pages, sequences.pages + part.sequence * sequences.stride, part.first, part.last);
  const std::vector<float> keys = rebuild_keys(pages, blocks.data(), part.first, part.last);
  const void* key_block = keys.data();
  const std::int64_t first_latent = part.first % pages.page_tokens;
  const RankSpaceSegment segment{
      .keys = {.key = {&key_block, count, count, KvElement::kFloat32},
               .first_position = part.first,
               .raw_key = true},
      .latents = {blocks.data(), pages.page_tokens, first_latent + count, pages.element},
      .first_latent = first_latent,
      .width = shape_.rank,
      .first_channel = shape_.rank - shape_.value_rank,
      .rank = shape_.value_rank};
  std::vector<float> numbers(at(heads * shape_.head_dim));
  const std::int64_t begin = sequences.starts[part.sequence];
  for (std::int64_t row = begin; row < sequences.starts[part.sequence + 1]; ++row) {
    const AttentionPartial own = partials[part.partial + row - begin];
    std::fill_n(own.max, heads, -INFINITY);
    const std::int64_t hidden = first_seen(sequences.past[part.sequence] + row - begin);
    if (hidden < part.last) {
      add_rank_space_attention(params(query, row, numbers), segment,
                               std::max(hidden, part.first) - part.first, count, own);
    }
  }
}

void PagedLatents::join(std::vector<AttentionPartial> partials, std::int64_t first,
                        std::int64_t row, const PagedRows& exact, const HeadRows& query,
                        const HeadRows& output) const {
  const std::int64_t heads = shape_.num_heads, head_dim = shape_.head_dim;
  const std::int64_t per_kv = heads / shape_.num_kv_heads, channels = heads * head_dim;
  PartialMemory memory(2, heads, head_dim);
  std::vector<AttentionPartial> both;
  const auto next = [&] {
    both.push_back(memory[static_cast<std::int64_t>(both.size())]);
    return both.back();
  };
  std::erase_if(partials, [](const AttentionPartial& part) { return part.max[0] == -INFINITY; });
  if (!partials.empty()) {
    std::vector<float> sums(at(heads * shape_.value_rank));
    const AttentionPartial latents = next();
    combine_partials(partials.data(), static_cast<std::int64_t>(partials.size()), heads,
                     shape_.value_rank, sums.data(), latents.max);
    std::fill_n(latents.sum, heads, 1.0f);
    for (std::int64_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      float* values = latents.output + kv_head * per_kv * head_dim;
      values_[at(kv_head)].multiply(sums.data() + kv_head * per_kv * shape_.value_rank, per_kv,
                                    values, head_dim);
      for (std::int64_t i = 0; !value_offset_.empty() && i < per_kv * head_dim; ++i) {
        values[i] += value_offset_[at(kv_head * head_dim + i % head_dim)];
      }
    }
  }
  const std::int64_t count = row + 1 - first, width = kv_dim();
  std::vector<float> keys(at(count * width)), values(at(count * width));
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
      const std::int64_t place = i * width + head * head_dim;
      load_row(exact.key, first + i, head, head_dim, keys.data() + place);
      load_row(exact.value, first + i, head, head_dim, values.data() + place);
    }
  }
  const void *key_block = keys.data(), *value_block = values.data();
  const KvSegment segment{.key = {&key_block, count, count, KvElement::kFloat32},
                          .value = {&value_block, count, count, KvElement::kFloat32}};
  std::vector<float> numbers(at(channels)), joined(at(channels));
  decode_attention_partial(params(query, row, numbers), segment, 0, count, next());
  combine_partials(both.data(), static_cast<std::int64_t>(both.size()), heads, head_dim,
                   joined.data());
  for (std::int64_t head = 0; head < heads; ++head) {
    store_row(output, row, head, head_dim, joined.data() + head * head_dim);
  }
}

void PagedLatents::attend(const LatentPages& pages, const Sequences& sequences,
                          const PagedRows& exact, const HeadRows& query, const HeadRows& output,
                          const Parallel& parallel) const {
  const std::vector<Part> parts = parts_of(sequences);
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  const std::int64_t heads = shape_.num_heads;
  std::vector<std::vector<std::int64_t>> of_query(
      at(sequences.starts[sequences.count]));  // partials
  std::int64_t num_partials = 0, tokens = 0;
  for (const Part& part : parts) {
    tokens += part.last - part.first;
    for (std::int64_t row = sequences.starts[part.sequence];
         row < sequences.starts[part.sequence + 1]; ++row) {
      of_query[at(row)].push_back(num_partials++);
    }
  }
  PartialMemory partials(num_partials, heads, shape_.value_rank);
  const std::int64_t of_token =
      kv_dim() * shape_.key_rank + heads * (shape_.head_dim + shape_.value_rank);
  parallel(num_parts, least_together(num_parts, tokens * of_token),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               attend_part(pages, sequences, parts[at(i)], query, partials);
             }
           });
  const std::int64_t of_sequence = heads * shape_.head_dim * (shape_.value_rank + 2);
  parallel(
      sequences.count, least_together(1, of_sequence), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t sequence = begin; sequence < end; ++sequence) {
          const std::int64_t start = sequences.starts[sequence];
          for (std::int64_t row = start; row < sequences.starts[sequence + 1]; ++row) {
            std::vector<AttentionPartial> own;
            for (const std::int64_t index : of_query[at(row)]) {
              own.push_back(partials[index]);
            }
            const std::int64_t past = sequences.past[sequence];
            const std::int64_t hidden = first_seen(past + row - start) - past;  // of the exact rows
            join(std::move(own), start + std::max<std::int64_t>(0, hidden), row, exact, query,
                 output);
          }
        }
      });
}

}  // namespace kvc
