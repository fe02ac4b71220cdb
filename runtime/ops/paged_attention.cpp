#include <algorithm>
#include <atomic>
#include <cmath>

#include "runtime/kernels/coded_attention.h"
#include "runtime/ops/attention_parts.h"
#include "runtime/ops/head_rows.h"
#include "runtime/ops/paged_codes.h"

namespace kvc {
namespace {

// Tokens of a sequence that are read in one go.
constexpr std::int64_t kTokensTogether = 1024;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// A part of a sequence's codes, for one range of heads.
struct Task {
  std::int64_t sequence, heads;
  std::int64_t first, last;  // tokens
  std::int64_t partial;      // its number
};

}  // namespace

void PagedCodes::attend_open(const OpenTiles& open, std::int64_t sequence, std::int64_t first,
                             std::int64_t last, const HeadRows& query,
                             const AttentionPartial& partial) const {
  const std::int64_t start = open.first_token(last);
  const std::int64_t bytes = kv_rows_bytes(kTileTokens, shape_.num_kv_heads * shape_.head_dim,
                                           shape_.head_dim, open.element, KvScales::kPerRow);
  const std::int32_t* tiles = open.numbers_of(sequence, last);
  std::vector<const void*> keys, values;
  for (std::int64_t i = 0; i < open.count(last); ++i) {
    keys.push_back(static_cast<const std::uint8_t*>(open.keys) + tiles[i] * bytes);
    values.push_back(static_cast<const std::uint8_t*>(open.values) + tiles[i] * bytes);
  }
  const KvSegment segment{.key = {keys.data(), kTileTokens, last - start, open.element},
                          .value = {values.data(), kTileTokens, last - start, open.element}};
  std::vector<float> numbers(at(shape_.num_heads * shape_.head_dim));
  for (std::int64_t head = 0; head < shape_.num_heads; ++head) {
    load_row(query, sequence, head, shape_.head_dim, numbers.data() + head * shape_.head_dim);
  }
  const DecodeAttentionParams params{.query = numbers.data(),
                                     .num_heads = shape_.num_heads,
                                     .num_kv_heads = shape_.num_kv_heads,
                                     .head_dim = shape_.head_dim,
                                     .scale = shape_.scale,
                                     .softcap = shape_.softcap};
  decode_attention_partial(params, segment, std::max(first, start) - start, last - start, partial);
}

void PagedCodes::attend(const PageMemory& pages, const Sequences& sequences, const OpenTiles& open,
                        std::int64_t layer, const HeadRows& query, const HeadRows& output,
                        const Parallel& parallel) const {
  const std::int64_t head_dim = shape_.head_dim, per_kv = shape_.num_heads / shape_.num_kv_heads;
  const std::int64_t page_tokens = pages.page_tiles * kTileTokens;
  const auto width_of = [&](const Heads& heads) {
    return blocks_[heads.values].spec().layout.num_coefficients() + 1;
  };
  std::vector<Task> tasks;
  std::vector<std::int64_t> ends;  // of the tasks of every sequence and range of heads
  std::int64_t most_heads = 0, most_width = 0;
  for (const Heads& heads : heads_) {
    most_heads = std::max(most_heads, heads.count * per_kv);
    most_width = std::max(most_width, width_of(heads));
  }
  const auto num_ranges = static_cast<std::int64_t>(heads_.size());
  const auto hidden_of = [&](std::int64_t sequence) {
    const std::int64_t before = sequences.tokens[sequence] - shape_.window;
    return shape_.window == 0 ? 0 : std::max<std::int64_t>(0, before);
  };
  const bool has_open = open.numbers != nullptr;
  for (std::int64_t sequence = 0; sequence < sequences.count; ++sequence) {
    const std::int64_t tokens = sequences.tokens[sequence], hidden = hidden_of(sequence);
    const std::int64_t last = open.first_token(tokens);
    for (std::int64_t heads = 0; heads < num_ranges; ++heads) {
      for_each_part(hidden, last, kTokensTogether, [&](std::int64_t first, std::int64_t end) {
        tasks.push_back({sequence, heads, first, end, static_cast<std::int64_t>(tasks.size())});
      });
      ends.push_back(static_cast<std::int64_t>(tasks.size()));
    }
  }
  // Where the first token has a mean of its own: its scores, for every sequence, range and head.
  const bool has_first = blocks_[heads_.front().keys].has_first();
  std::vector<float> first_scores(at(has_first ? sequences.count * num_ranges * most_heads : 0),
                                  -INFINITY);
  std::vector<std::vector<float>> first_keys;  // of every range
  for (const Heads& heads : heads_) {
    first_keys.push_back(has_first ? blocks_[heads.keys].first_keys(shape_.rope, layer)
                                   : std::vector<float>());
  }
  const auto first_scores_of = [&](std::int64_t sequence, std::int64_t heads) {
    return first_scores.data() + (sequence * num_ranges + heads) * most_heads;
  };
  PartialMemory partials(static_cast<std::int64_t>(tasks.size()), most_heads, most_width);
  PartialMemory of_open(has_open ? sequences.count : 0, shape_.num_heads, head_dim);

  const auto attend_part = [&](const Task& task) {
    const Heads& heads = heads_[at(task.heads)];
    const CodedRows &keys = blocks_[heads.keys], &values = blocks_[heads.values];
    const std::int32_t* page_numbers = sequences.pages + task.sequence * sequences.stride;
    const std::int64_t start = task.first / page_tokens * page_tokens;
    const auto key_places = places(pages, page_numbers, heads.keys, task.first, task.last);
    const auto value_places = places(pages, page_numbers, heads.values, task.first, task.last);
    const auto tiles = [&](const std::vector<const void*>& of, const CodedRows& rows) {
      const TileLayout& layout = rows.spec().layout;
      return CodeTiles{layout.bytes() == 0 ? nullptr : of.data(), pages.page_tiles,
                       (task.last - start + kTileTokens - 1) / kTileTokens, layout};
    };
    const CodeTiles of_keys = tiles(key_places, keys);
    const CodedSegment segment{
        .keys = of_keys,
        .values = heads.keys == heads.values ? of_keys : tiles(value_places, values),
        .rows = keys.keys(layer),
        .first_position = start,
        .first_token = has_first && start == 0
                           ? FirstToken{first_keys[at(task.heads)].data(),
                                        first_scores_of(task.sequence, task.heads)}
                           : FirstToken{}};
    const std::int64_t num_heads = heads.count * per_kv;
    std::vector<float> numbers(at(num_heads * head_dim));
    for (std::int64_t head = 0; head < num_heads; ++head) {
      load_row(query, task.sequence, heads.first * per_kv + head, head_dim,
               numbers.data() + head * head_dim);
    }
    const DecodeAttentionParams params{.query = numbers.data(),
                                       .num_heads = num_heads,
                                       .num_kv_heads = heads.count,
                                       .head_dim = head_dim,
                                       .scale = shape_.scale,
                                       .softcap = shape_.softcap,
                                       .raw_keys = {.rope = shape_.rope}};
    coded_attention_partial(params, segment, task.first - start, task.last - start,
                            partials[task.partial]);
  };
  // Joins the parts first .. last - 1 of a sequence and a range of heads with its open tiles.
  const auto finish = [&](std::int64_t range, std::int64_t first, std::int64_t last) {
    const std::int64_t sequence = range / num_ranges;
    const Heads& heads = heads_[at(range % num_ranges)];
    const std::int64_t width = width_of(heads), num_heads = heads.count * per_kv;
    std::vector<AttentionPartial> parts;
    for (std::int64_t i = first; i < last; ++i) {
      parts.push_back(partials[i]);
    }
    std::vector<float> sums(at(num_heads * width)), values(at(num_heads * head_dim));
    std::vector<float> log_sums(at(num_heads)), ones(at(num_heads), 1);
    if (first < last) {
      combine_partials(parts.data(), last - first, num_heads, width, sums.data(), log_sums.data());
      std::vector<float> first_weights(at(num_heads));
      const float* scores = first_scores_of(sequence, range % num_ranges);
      for (std::int64_t head = 0; has_first && head < num_heads; ++head) {
        first_weights[at(head)] = std::exp(scores[head] - log_sums[at(head)]);
      }
      for (std::int64_t kv_head = 0; kv_head < heads.count; ++kv_head) {
        blocks_[heads.values].decode_sums(
            layer, heads.in_values + kv_head, per_kv, sums.data() + kv_head * per_kv * width,
            has_first ? first_weights.data() + kv_head * per_kv : nullptr,
            values.data() + kv_head * per_kv * head_dim);
      }
    }
    if (has_open) {
      std::vector<AttentionPartial> both;
      std::vector<float> of_codes = values;
      if (first < last) {
        both.push_back(
            {.max = log_sums.data(), .sum = ones.data(), .output = of_codes.data(), .scores = {}});
      }
      const AttentionPartial all = of_open[sequence];
      const std::int64_t from = heads.first * per_kv;
      both.push_back({.max = all.max + from,
                      .sum = all.sum + from,
                      .output = all.output + from * head_dim,
                      .scores = {}});
      combine_partials(both.data(), static_cast<std::int64_t>(both.size()), num_heads, head_dim,
                       values.data());
    }
    for (std::int64_t head = 0; head < num_heads; ++head) {
      store_row(output, sequence, heads.first * per_kv + head, head_dim,
                values.data() + head * head_dim);
    }
  };
  std::int64_t products = sequences.count * shape_.num_heads * head_dim * kTileTokens * open.each;
  for (const Task& task : tasks) {
    const Heads& heads = heads_[at(task.heads)];
    products += (task.last - task.first) * heads.count * per_kv * width_of(heads);
  }
  // Threads take items one after the other: a sequence's open tiles, or a part of its codes. Whoever ends the last item of a
  // sequence and a range of heads joins its parts, so that no thread waits for another.
  std::vector<std::atomic<std::int64_t>> missing(ends.size());
  const auto begin_of = [&](std::int64_t range) { return range == 0 ? 0 : ends[at(range - 1)]; };
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto range = static_cast<std::int64_t>(i);
    missing[i] = ends[i] - begin_of(range) + (has_open ? 1 : 0);
  }
  const auto ended = [&](std::int64_t range) {
    if (missing[at(range)].fetch_sub(1) == 1) {
      finish(range, begin_of(range), ends[at(range)]);
    }
  };
  const auto num_tasks = static_cast<std::int64_t>(tasks.size());
  const std::int64_t num_items = num_tasks + (has_open ? sequences.count : 0);
  std::atomic<std::int64_t> next = 0;
  const auto take_items = [&](std::int64_t, std::int64_t) {
    for (std::int64_t item = next++; item < num_items; item = next++) {
      if (item < num_tasks) {
        const Task& task = tasks[at(item)];
        attend_part(task);
        ended(task.sequence * num_ranges + task.heads);
        continue;
      }
      const std::int64_t sequence = item - num_tasks;
      attend_open(open, sequence, hidden_of(sequence), sequences.tokens[sequence], query,
                  of_open[sequence]);
      for (std::int64_t heads = 0; heads < num_ranges; ++heads) {
        ended(sequence * num_ranges + heads);
      }
    }
  };
  parallel(std::min(num_items, products / kProductsPerThread + 1), 1, take_items);
}

}  // namespace kvc
