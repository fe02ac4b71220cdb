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

}  // namespace

// One call of attend(). A range is a sequence and the heads that some blocks hold together. Its codes are read in parts, its
// open tiles at once for all heads, and then both are joined.
class PagedCodes::AttentionPass {
 public:
  AttentionPass(const PagedCodes& codes, const PageMemory& pages, const Sequences& sequences,
                const OpenTiles& open, std::int64_t layer, const HeadRows& query,
                const HeadRows& output)
      : codes_(codes),
        shape_(codes.shape_),
        pages_(pages),
        sequences_(sequences),
        open_(open),
        layer_(layer),
        query_(query),
        output_(output),
        per_kv_(shape_.num_heads / shape_.num_kv_heads),
        num_head_sets_(static_cast<std::int64_t>(codes.heads_.size())),
        has_first_(codes.blocks_[codes.heads_.front().keys].has_first()),
        tasks_(plan_tasks()),
        missing_(ranges_.size()),
        partials_(count_of(tasks_), most_heads(), most_width()),
        of_open_(has_open() ? sequences.count : 0, shape_.num_heads, shape_.head_dim),
        first_scores_(at(has_first_ ? sequences.count * num_head_sets_ * most_heads() : 0),
                      -INFINITY) {
    for (std::size_t range = 0; range < ranges_.size(); ++range) {
      missing_[range] = ranges_[range].last - ranges_[range].first + (has_open() ? 1 : 0);
    }
    for (const Heads& heads : codes.heads_) {
      first_keys_.push_back(has_first_ ? codes.blocks_[heads.keys].first_keys(shape_.rope, layer)
                                       : std::vector<float>());
    }
  }

  // Threads take items one after the other: a sequence's open tiles, or a part of its codes. Whoever ends the last item of a
  // range joins its parts, so that no thread waits for another.
  void run(const Parallel& parallel) {
    const std::int64_t num_items = count_of(tasks_) + (has_open() ? sequences_.count : 0);
    std::atomic<std::int64_t> next = 0;
    parallel(std::min(num_items, products() / kProductsPerThread + 1), 1,
             [&](std::int64_t, std::int64_t) {
               for (std::int64_t item = next++; item < num_items; item = next++) {
                 take(item);
               }
             });
  }

 private:
  // A part of a range's codes.
  struct Task {
    std::int64_t range;
    std::int64_t first, last;  // tokens
  };
  // Tasks of a range.
  struct Range {
    std::int64_t first, last;
  };

  static std::int64_t count_of(const std::vector<Task>& tasks) {
    return static_cast<std::int64_t>(tasks.size());
  }
  bool has_open() const { return open_.numbers != nullptr; }
  std::int64_t sequence_of(std::int64_t range) const { return range / num_head_sets_; }
  const Heads& heads_of(std::int64_t range) const {
    return codes_.heads_[at(range % num_head_sets_)];
  }
  // Numbers of a head's weighted sum of codes.
  std::int64_t width_of(const Heads& heads) const {
    return codes_.blocks_[heads.values].spec().layout.num_coefficients() + 1;
  }
  std::int64_t most_heads() const {
    std::int64_t most = 0;
    for (const Heads& heads : codes_.heads_) {
      most = std::max(most, heads.count * per_kv_);
    }
    return most;
  }
  std::int64_t most_width() const {
    std::int64_t most = 0;
    for (const Heads& heads : codes_.heads_) {
      most = std::max(most, width_of(heads));
    }
    return most;
  }
  // Tokens of a sequence that its window hides.
  std::int64_t hidden_of(std::int64_t sequence) const {
    const std::int64_t before = sequences_.tokens[sequence] - shape_.window;
    return shape_.window == 0 ? 0 : std::max<std::int64_t>(0, before);
  }
  // One score for each head of a range, of the first token, which has a mean of its own.
  float* first_scores_of(std::int64_t range) { return first_scores_.data() + range * most_heads(); }

  std::vector<Task> plan_tasks() {
    std::vector<Task> tasks;
    for (std::int64_t range = 0; range < sequences_.count * num_head_sets_; ++range) {
      const std::int64_t sequence = sequence_of(range), begin = count_of(tasks);
      for_each_part(hidden_of(sequence), open_.first_token(sequences_.tokens[sequence]),
                    kTokensTogether, [&](std::int64_t first, std::int64_t last) {
                      tasks.push_back({range, first, last});
                    });
      ranges_.push_back({begin, count_of(tasks)});
    }
    return tasks;
  }

  std::int64_t products() const {
    std::int64_t products =
        sequences_.count * shape_.num_heads * shape_.head_dim * kTileTokens * open_.each;
    for (const Task& task : tasks_) {
      const Heads& heads = heads_of(task.range);
      products += (task.last - task.first) * heads.count * per_kv_ * width_of(heads);
    }
    return products;
  }

  void take(std::int64_t item) {
    if (item < count_of(tasks_)) {
      attend_part(item);
      end_item(tasks_[at(item)].range);
      return;
    }
    const std::int64_t sequence = item - count_of(tasks_);
    codes_.attend_open(open_, sequence, hidden_of(sequence), sequences_.tokens[sequence], query_,
                       of_open_[sequence]);
    for (std::int64_t set = 0; set < num_head_sets_; ++set) {
      end_item(sequence * num_head_sets_ + set);
    }
  }

  void end_item(std::int64_t range) {
    if (missing_[at(range)].fetch_sub(1) == 1) {
      finish(range);
    }
  }

  std::vector<float> queries_of(std::int64_t range) const {
    const Heads& heads = heads_of(range);
    std::vector<float> numbers(at(heads.count * per_kv_ * shape_.head_dim));
    for (std::int64_t head = 0; head < heads.count * per_kv_; ++head) {
      load_row(query_, sequence_of(range), heads.first * per_kv_ + head, shape_.head_dim,
               numbers.data() + head * shape_.head_dim);
    }
    return numbers;
  }

  void attend_part(std::int64_t number) {
    const Task& task = tasks_[at(number)];
    const Heads& heads = heads_of(task.range);
    const CodedRows &keys = codes_.blocks_[heads.keys], &values = codes_.blocks_[heads.values];
    const std::int64_t page_tokens = pages_.page_tiles * kTileTokens;
    const std::int64_t start = task.first / page_tokens * page_tokens;
    const std::int32_t* page_numbers =
        sequences_.pages + sequence_of(task.range) * sequences_.stride;
    const auto key_places = codes_.places(pages_, page_numbers, heads.keys, task.first, task.last);
    const auto value_places =
        codes_.places(pages_, page_numbers, heads.values, task.first, task.last);
    const auto tiles = [&](const std::vector<const void*>& of, const CodedRows& rows) {
      const TileLayout& layout = rows.spec().layout;
      return CodeTiles{layout.bytes() == 0 ? nullptr : of.data(), pages_.page_tiles,
                       (task.last - start + kTileTokens - 1) / kTileTokens, layout};
    };
    const CodeTiles of_keys = tiles(key_places, keys);
    const CodedSegment segment{
        .keys = of_keys,
        .values = heads.keys == heads.values ? of_keys : tiles(value_places, values),
        .rows = keys.keys(layer_),
        .first_position = start,
        .first_token = has_first_ && start == 0
                           ? FirstToken{first_keys_[at(task.range % num_head_sets_)].data(),
                                        first_scores_of(task.range)}
                           : FirstToken{}};
    const std::vector<float> query = queries_of(task.range);
    const DecodeAttentionParams params{.query = query.data(),
                                       .num_heads = heads.count * per_kv_,
                                       .num_kv_heads = heads.count,
                                       .head_dim = shape_.head_dim,
                                       .scale = shape_.scale,
                                       .softcap = shape_.softcap,
                                       .raw_keys = {.rope = shape_.rope}};
    coded_attention_partial(params, segment, task.first - start, task.last - start,
                            partials_[number]);
  }

  // Values that a range's codes give, and each head's log-sum-exp. The range has tasks.
  void join_parts(std::int64_t range, std::vector<float>& values, std::vector<float>& log_sums) {
    const Heads& heads = heads_of(range);
    const auto [first, last] = ranges_[at(range)];
    const std::int64_t width = width_of(heads), num_heads = heads.count * per_kv_;
    std::vector<AttentionPartial> parts;
    for (std::int64_t task = first; task < last; ++task) {
      parts.push_back(partials_[task]);
    }
    std::vector<float> sums(at(num_heads * width)), first_weights(at(num_heads));
    combine_partials(parts.data(), last - first, num_heads, width, sums.data(), log_sums.data());
    for (std::int64_t head = 0; has_first_ && head < num_heads; ++head) {
      first_weights[at(head)] = std::exp(first_scores_of(range)[head] - log_sums[at(head)]);
    }
    for (std::int64_t kv_head = 0; kv_head < heads.count; ++kv_head) {
      codes_.blocks_[heads.values].decode_sums(
          layer_, heads.in_values + kv_head, per_kv_, sums.data() + kv_head * per_kv_ * width,
          has_first_ ? first_weights.data() + kv_head * per_kv_ : nullptr,
          values.data() + kv_head * per_kv_ * shape_.head_dim);
    }
  }

  // Joins a range's parts with its sequence's open tiles.
  void finish(std::int64_t range) {
    const Heads& heads = heads_of(range);
    const std::int64_t num_heads = heads.count * per_kv_, head_dim = shape_.head_dim;
    const bool has_codes = ranges_[at(range)].first < ranges_[at(range)].last;
    std::vector<float> values(at(num_heads * head_dim)), log_sums(at(num_heads));
    if (has_codes) {
      join_parts(range, values, log_sums);
    }
    if (has_open()) {
      std::vector<float> ones(at(num_heads), 1), of_codes = values;
      std::vector<AttentionPartial> both;
      if (has_codes) {
        both.push_back(
            {.max = log_sums.data(), .sum = ones.data(), .output = of_codes.data(), .scores = {}});
      }
      const AttentionPartial all = of_open_[sequence_of(range)];
      const std::int64_t from = heads.first * per_kv_;
      both.push_back({.max = all.max + from,
                      .sum = all.sum + from,
                      .output = all.output + from * head_dim,
                      .scores = {}});
      combine_partials(both.data(), static_cast<std::int64_t>(both.size()), num_heads, head_dim,
                       values.data());
    }
    for (std::int64_t head = 0; head < num_heads; ++head) {
      store_row(output_, sequence_of(range), heads.first * per_kv_ + head, head_dim,
                values.data() + head * head_dim);
    }
  }

  const PagedCodes& codes_;
  const Shape& shape_;
  const PageMemory& pages_;
  const Sequences& sequences_;
  const OpenTiles& open_;
  std::int64_t layer_;
  const HeadRows &query_, &output_;
  std::int64_t per_kv_;         // query heads of a KV head
  std::int64_t num_head_sets_;  // sets of heads that blocks hold together
  bool has_first_;              // the first token has a mean of its own
  std::vector<Range> ranges_;
  std::vector<Task> tasks_;
  std::vector<std::atomic<std::int64_t>> missing_;  // items of each range that have not ended
  PartialMemory partials_, of_open_;
  std::vector<float> first_scores_;             // [ranges, most_heads()]
  std::vector<std::vector<float>> first_keys_;  // [num_head_sets]
};

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
  AttentionPass(*this, pages, sequences, open, layer, query, output).run(parallel);
}

}  // namespace kvc
