#include "runtime/attention/decode.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/element.h"
#include "model/parallel.h"
#include "runtime/kernels/fused_attention.h"
#include "runtime/store/element_type.h"

namespace kvc {
namespace {

constexpr std::int64_t kElementsPerThread = std::int64_t{1}
                                            << 15;  // below, threads cost more than they save
// As many take as long to read as it takes to begin with a range.
constexpr std::int64_t kElementsOfStart = std::int64_t{1} << 13;

// Rows that one thread reads in one go.
struct Piece {
  const RowRange* range;
  std::int64_t first, last, chunk;
};

// The ranges' rows, one after the other, in `chunks` parts that take as long as each other: every range after the first
// costs `start` rows more.
std::vector<Piece> split(const std::vector<RowRange>& ranges, std::int64_t num_rows,
                         std::int64_t start, std::int64_t chunks) {
  const std::int64_t cost = num_rows + start * (static_cast<std::int64_t>(ranges.size()) - 1);
  const std::int64_t per_chunk = (cost + chunks - 1) / chunks;
  std::vector<Piece> pieces;
  std::int64_t done = -start;
  for (const RowRange& range : ranges) {
    done += start;
    for (std::int64_t first = range.first; first < range.last;) {
      const std::int64_t chunk = done / per_chunk;
      const std::int64_t last = std::min(range.last, first + (chunk + 1) * per_chunk - done);
      pieces.push_back({&range, first, last, chunk});
      done += last - first;
      first = last;
    }
  }
  return pieces;
}

std::int64_t count_rows(const std::vector<RowRange>& ranges) {
  std::int64_t count = 0;
  for (const RowRange& range : ranges) {
    count += std::max<std::int64_t>(0, range.last - range.first);
  }
  return count;
}

// Heads first .. last - 1 of `from`, [heads, head_dim] float32, in the type of `to`.
void write_heads(const float* from, std::int64_t first, std::int64_t last, const at::Tensor& to) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, to.scalar_type(), "write_heads", [&] {
    auto* numbers = to.mutable_data_ptr<scalar_t>();
    std::transform(from + first, from + last, numbers + first, narrow<scalar_t>);
  });
}

// Where the softmax of all rows goes.
struct Combined {
  float* output;             // [num_heads, value_channels()]
  float* log_sum;            // [num_heads]
  const at::Tensor* narrow;  // unless null, `output` in another type
};

// kernel(range, first, last, partial) attends to rows of ranges[range], in parallel.
template <typename Kernel>
void attend_ranges(const DecodeAttentionParams& params, const std::vector<RowRange>& ranges,
                   const Kernel& kernel, const Combined& to, const AfterAttention& after = {}) {
  const std::int64_t num_rows = count_rows(ranges), width = params.value_channels();
  KVC_CHECK(num_rows >= 1, "decode attention: no keys");
  const std::int64_t row = params.num_kv_heads * params.head_dim;
  const std::int64_t chunks =
      std::clamp<std::int64_t>(num_rows * row / kElementsPerThread, 1, planned_threads());
  const std::vector<Piece> pieces = split(ranges, num_rows, kElementsOfStart / row, chunks);
  const Partials work(pieces.size(), params.num_heads, width);
  std::vector<Phase> phases;
  phases.emplace_back([&](std::int64_t thread, std::int64_t threads) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      if (piece.chunk * threads / chunks == thread) {
        kernel(static_cast<std::size_t>(piece.range - ranges.data()), piece.first, piece.last,
               work[i]);
      }
    }
  });
  phases.emplace_back([&](std::int64_t thread, std::int64_t threads) {
    const std::int64_t first = params.num_heads * thread / threads;
    const std::int64_t last = params.num_heads * (thread + 1) / threads;
    combine_heads(work.all().data(), static_cast<std::int64_t>(pieces.size()), first, last, width,
                  to.output, to.log_sum);
    if (to.narrow != nullptr) {
      write_heads(to.output, first * width, last * width, *to.narrow);
    }
  });
  if (after) {
    phases.emplace_back(
        [&](std::int64_t thread, std::int64_t threads) { after(to.log_sum, thread, threads); });
  }
  parallel_phases(chunks, phases);
}

// In the query's dtype, [num_heads * value_channels()].
template <typename Kernel>
at::Tensor attend_all(const DecodeQuery& one, at::ScalarType dtype,
                      const std::vector<RowRange>& ranges, const Kernel& kernel,
                      const AfterAttention& after = {}) {
  const std::int64_t size = one.params.num_heads * one.params.value_channels();
  const at::Tensor output = at::empty({size}, dtype);
  std::vector<float> memory(static_cast<std::size_t>(size + one.params.num_heads));
  attend_ranges(one.params, ranges, kernel, {memory.data(), memory.data() + size, &output}, after);
  return output;
}

std::vector<float> widened(const at::Tensor& query) {
  const at::Tensor rows = query.contiguous();
  std::vector<float> numbers(static_cast<std::size_t>(rows.numel()));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "widened", [&] {
    const auto* from = rows.const_data_ptr<scalar_t>();
    std::transform(from, from + rows.numel(), numbers.data(), widen<scalar_t>);
  });
  return numbers;
}

// Attends to rows of these ranges.
auto kernel_of(const DecodeQuery& one, const std::vector<RowRange>& ranges) {
  return [&](std::size_t range, std::int64_t first, std::int64_t last, AttentionPartial partial) {
    partial.scores = ranges[range].scores;
    decode_attention_partial(one.params, ranges[range].segment, first, last, partial);
  };
}

}  // namespace

DecodeQuery::DecodeQuery(const at::Tensor& query, std::int64_t num_kv_heads,
                         const AttentionRule& rule, const RawKeys& raw_keys, std::int64_t value_dim)
    : numbers(widened(query)),
      params{.query = numbers.data(),
             .num_heads = query.size(-2),
             .num_kv_heads = num_kv_heads,
             .head_dim = query.size(-1),
             .value_dim = value_dim,
             .scale = static_cast<float>(
                 rule.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))))),
             .softcap = static_cast<float>(rule.softcap),
             .raw_keys = raw_keys} {}

PartialAttention decode_attention_partly(const at::Tensor& query, std::int64_t num_kv_heads,
                                         const std::vector<RowRange>& ranges,
                                         const AttentionRule& rule, const RawKeys& raw_keys,
                                         std::int64_t value_dim) {
  const DecodeQuery one(query, num_kv_heads, rule, raw_keys, value_dim);
  const PartialAttention whole{
      at::empty({one.params.num_heads, one.params.value_channels()}, at::kFloat),
      at::empty({one.params.num_heads}, at::kFloat)};
  attend_ranges(
      one.params, ranges, kernel_of(one, ranges),
      {whole.output.mutable_data_ptr<float>(), whole.log_sum.mutable_data_ptr<float>(), nullptr});
  return whole;
}

at::Tensor fused_decode_attention(const at::Tensor& query, std::int64_t num_kv_heads,
                                  const std::vector<RowRange>& first,
                                  const std::vector<RowRange>& second,
                                  const FusedChannels& channels, const AttentionRule& rule,
                                  const RawKeys& raw_keys) {
  const DecodeQuery one(query, num_kv_heads, rule, raw_keys);
  std::vector<FusedSegment> segments;
  for (std::size_t range = 0; range < first.size(); ++range) {
    segments.push_back({.first = first[range].segment,
                        .second = second[range].segment,
                        .first_key = channels.first_key,
                        .second_key = channels.second_key,
                        .first_value = channels.first_value,
                        .second_value = channels.second_value});
  }
  return attend_all(one, query.scalar_type(), first,
                    [&](std::size_t range, std::int64_t begin, std::int64_t end,
                        const AttentionPartial& partial) {
                      fused_attention_partial(one.params, segments[range], begin, end, partial);
                    });
}

at::Tensor decode_attention(const at::Tensor& query, std::int64_t num_kv_heads,
                            const std::vector<RowRange>& ranges, const AttentionRule& rule,
                            const RawKeys& raw_keys, const AfterAttention& after) {
  const DecodeQuery one(query, num_kv_heads, rule, raw_keys);
  return attend_all(one, query.scalar_type(), ranges, kernel_of(one, ranges), after);
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule) {
  const std::int64_t num_tokens = key.size(0);
  const std::int64_t seen = std::min(rule.window.value_or(num_tokens), num_tokens);
  const void* key_block = key.const_data_ptr();
  const void* value_block = value.const_data_ptr();
  const KvElement element = element_of(key.scalar_type());
  const KvSegment segment{.key = {&key_block, num_tokens, num_tokens, element},
                          .value = {&value_block, num_tokens, num_tokens, element}};
  return decode_attention(query, key.size(1), {{segment, num_tokens - seen, num_tokens}}, rule);
}

}  // namespace kvc
