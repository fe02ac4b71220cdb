#include "runtime/ops/paged_rows.h"

#include <algorithm>

#include "runtime/kernels/fused_attention.h"
#include "runtime/ops/attention_parts.h"
#include "runtime/ops/head_rows.h"

namespace kvc {
namespace {

// Tokens of a sequence that are read in one go.
constexpr std::int64_t kTokensTogether = 1024;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Tokens first .. last - 1 of a sequence.
struct Part {
  std::int64_t sequence, first, last;
};

// A part's keys and values; owns the places of its pages.
struct Blocks {
  std::vector<const void*> keys, values;
  KvSegment segment;

  Blocks(const PagedRowAttention::Source& source, std::int64_t page_tokens,
         const std::int32_t* pages, const Part& part) {
    const std::int64_t begin = part.first / page_tokens;
    for (std::int64_t page = begin; page * page_tokens < part.last; ++page) {
      keys.push_back(source.key.data + pages[page] * source.key.stride);
      values.push_back(source.value.data + pages[page] * source.value.stride);
    }
    const std::int64_t rows = part.last - begin * page_tokens;
    segment = {.key = {keys.data(), page_tokens, rows, source.key.element},
               .value = {values.data(), page_tokens, rows, source.value.element}};
  }
};

// Heads times what their KV head's channels have; nothing without factors.
void scale_heads(const float* factors, std::int64_t num_heads, std::int64_t num_kv_heads,
                 std::int64_t head_dim, float* heads) {
  for (std::int64_t i = 0; factors != nullptr && i < num_heads * head_dim; ++i) {
    const std::int64_t kv_head = i / head_dim / (num_heads / num_kv_heads);
    heads[i] *= factors[kv_head * head_dim + i % head_dim];
  }
}

}  // namespace

void PagedRowAttention::attend(const PagedCodes::Sequences& sequences, const HeadRows& query,
                               const HeadRows& output, const Parallel& parallel) const {
  std::vector<Part> parts;
  std::vector<std::int64_t> ends;  // of every sequence's parts
  std::int64_t tokens = 0;
  for (std::int64_t sequence = 0; sequence < sequences.count; ++sequence) {
    const std::int64_t last = sequences.tokens[sequence];
    const std::int64_t hidden = window == 0 ? 0 : std::max<std::int64_t>(0, last - window);
    tokens += last - hidden;
    for_each_part(hidden, last, kTokensTogether, [&](std::int64_t first, std::int64_t end) {
      parts.push_back({sequence, first, end});
    });
    ends.push_back(static_cast<std::int64_t>(parts.size()));
  }
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  PartialMemory partials(num_parts, num_heads, head_dim);
  const bool is_sum = sources.size() == 2;
  const auto attend_part = [&](std::int64_t index) {
    const Part& part = parts[at(index)];
    std::vector<float> numbers(at(num_heads * head_dim));
    for (std::int64_t head = 0; head < num_heads; ++head) {
      load_row(query, part.sequence, head, head_dim, numbers.data() + head * head_dim);
    }
    const DecodeAttentionParams params{.query = numbers.data(),
                                       .num_heads = num_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim,
                                       .scale = scale,
                                       .softcap = softcap};
    const std::int32_t* pages = sequences.pages + part.sequence * sequences.stride;
    const std::int64_t start = part.first / page_tokens * page_tokens;
    const std::int64_t first = part.first - start, last = part.last - start;
    const Blocks one(sources.front(), page_tokens, pages, part);
    if (!is_sum) {  // q · (a K) = (a q) · K
      scale_heads(sources[0].key.factors, num_heads, num_kv_heads, head_dim, numbers.data());
      decode_attention_partial(params, one.segment, first, last, partials[index]);
      return;
    }
    const Blocks two(sources.back(), page_tokens, pages, part);
    fused_attention_partial(params,
                            {.first = one.segment,
                             .second = two.segment,
                             .first_key = sources[0].key.factors,
                             .second_key = sources[1].key.factors,
                             .first_value = sources[0].value.factors,
                             .second_value = sources[1].value.factors},
                            first, last, partials[index]);
  };
  const std::int64_t products =
      2 * num_heads * head_dim * static_cast<std::int64_t>(sources.size());
  parallel(num_parts, least_together(num_parts, tokens * products),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t index = begin; index < end; ++index) {
               attend_part(index);
             }
           });
  const auto join = [&](std::int64_t sequence) {
    std::vector<AttentionPartial> own;
    for (std::int64_t index = sequence == 0 ? 0 : ends[at(sequence - 1)];
         index < ends[at(sequence)]; ++index) {
      own.push_back(partials[index]);
    }
    std::vector<float> joined(at(num_heads * head_dim));
    combine_partials(own.data(), static_cast<std::int64_t>(own.size()), num_heads, head_dim,
                     joined.data());
    if (!is_sum) {  // P (b V) = b (P V)
      scale_heads(sources[0].value.factors, num_heads, num_kv_heads, head_dim, joined.data());
    }
    for (std::int64_t head = 0; head < num_heads; ++head) {
      store_row(output, sequence, head, head_dim, joined.data() + head * head_dim);
    }
  };
  parallel(sequences.count, least_together(sequences.count, num_parts * num_heads * head_dim),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t sequence = begin; sequence < end; ++sequence) {
               join(sequence);
             }
           });
}

}  // namespace kvc
