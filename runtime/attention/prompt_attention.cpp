#include "runtime/attention/prompt_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "model/bfloat16_attention.h"
#include "model/decoder.h"
#include "runtime/attention/segment_attention.h"

namespace kvc {
namespace {

constexpr std::int64_t kQueriesPerBlock = 512;

// [n, heads, width] as [1, heads, n, width]; zeros up to `width` change neither scores nor sums.
at::Tensor padded_heads_first(const at::Tensor& x, std::int64_t width) {
  const at::Tensor wide = x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
  return wide.transpose(0, 1).unsqueeze(0);
}

struct Operands {
  at::Tensor query, key, value;  // [1, heads, n, width] float32
  double scale = 1;
};

// All keys before the queries, then the queries' own, joined by the sums of their exponentials: no mask
// is made.
at::Tensor attend_all(const Operands& x) {
  const std::int64_t past = x.key.size(2) - x.query.size(2);
  const auto attend = [&](std::int64_t first, std::int64_t last, bool is_causal) {
    return at::_scaled_dot_product_flash_attention_for_cpu(
        x.query, x.key.slice(2, first, last), x.value.slice(2, first, last), /*dropout_p=*/0.0,
        is_causal, /*attn_mask=*/{}, x.scale);
  };
  const auto [own, own_sum] = attend(past, x.key.size(2), /*is_causal=*/true);
  if (past == 0) {
    return own;
  }
  auto [joined, earlier_sum] = attend(0, past, /*is_causal=*/false);
  const at::Tensor weight = (earlier_sum - own_sum).sigmoid().unsqueeze(-1);
  return joined.sub_(own).mul_(weight).add_(own);
}

// Blocks of queries see only the keys that any of them can, so that the mask stays small.
at::Tensor attend_window(const Operands& x, std::int64_t window) {
  const std::int64_t num_queries = x.query.size(2), past = x.key.size(2) - num_queries;
  std::vector<at::Tensor> blocks;
  for (std::int64_t begin = 0; begin < num_queries; begin += kQueriesPerBlock) {
    const std::int64_t end = std::min(begin + kQueriesPerBlock, num_queries);
    const std::int64_t first_key = std::max<std::int64_t>(0, past + begin - window + 1);
    const at::Tensor distance = at::arange(past + begin, past + end, at::kLong).unsqueeze(1) -
                                at::arange(first_key, past + end, at::kLong).unsqueeze(0);
    blocks.push_back(at::scaled_dot_product_attention(
        x.query.slice(2, begin, end), x.key.slice(2, first_key, past + end),
        x.value.slice(2, first_key, past + end), (distance >= 0).logical_and(distance < window),
        /*dropout_p=*/0.0, /*is_causal=*/false, x.scale,
        /*enable_gqa=*/x.query.size(1) != x.key.size(1)));
  }
  return at::cat(blocks, 2);
}

// Capped scores have no kernel; attend_segments makes them for few queries at a time.
at::Tensor attend_capped(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const AttentionRule& rule) {
  const std::int64_t n = key.size(0), num_queries = query.size(0);
  const std::int64_t first =
      std::max<std::int64_t>(0, n - num_queries - rule.window.value_or(n) + 1);
  return attend_segments(query, at::arange(n - num_queries, n, at::kLong),
                         {{.key = key.slice(0, first),
                           .positions = at::arange(first, n, at::kLong),
                           .value = value.slice(0, first),
                           .latent = {},
                           .value_proj = {},
                           .value_bias = {}}},
                         rule);
}

struct TextRows {
  at::Tensor key, value;  // [n, num_kv_heads, head_dim], of tokens 0 .. n - 1
};

// True if the positions are 0 .. n - 1 in any order.
bool are_all(const at::Tensor& positions) {
  const std::int64_t n = positions.size(0);
  std::vector<bool> found(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t position = positions.const_data_ptr<std::int64_t>()[i];
    if (position < 0 || position >= n || found[static_cast<std::size_t>(position)]) {
      return false;
    }
    found[static_cast<std::size_t>(position)] = true;
  }
  return true;
}

// Rows [count, ...] to where their positions say.
void place(const at::Tensor& rows, const at::Tensor& positions, const at::Tensor& result) {
  const at::Tensor from = rows.contiguous();
  const std::size_t row_bytes = result.nbytes() / static_cast<std::size_t>(result.size(0));
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
  auto* target = static_cast<std::byte*>(result.mutable_data_ptr());
  const std::int64_t *position = positions.const_data_ptr<std::int64_t>(), count = rows.size(0);
  for (std::int64_t first = 0, last = 0; first < count; first = last) {
    do {
      ++last;
    } while (last < count && position[last] == position[last - 1] + 1);
    std::memcpy(target + static_cast<std::size_t>(position[first]) * row_bytes,
                source + static_cast<std::size_t>(first) * row_bytes,
                static_cast<std::size_t>(last - first) * row_bytes);
  }
}

// None if the segments hold other tokens than all up to the last query, or latents, or biases of scores.
std::optional<TextRows> rows_of_text(const std::vector<Segment>& segments,
                                     const at::Tensor& query_positions) {
  std::vector<at::Tensor> positions;
  for (const Segment& segment : segments) {
    if (!segment.value.defined() || segment.score_bias.defined()) {
      return std::nullopt;
    }
    positions.push_back(segment.positions);
  }
  const at::Tensor all = at::cat(positions);
  const std::int64_t n = all.size(0), queries = query_positions.size(0);
  if (n < queries || !are_all(all) ||
      !at::equal(query_positions, at::arange(n - queries, n, at::kLong))) {
    return std::nullopt;
  }
  const Segment& first = segments.front();
  if (segments.size() == 1 && at::equal(all, at::arange(n, at::kLong))) {
    return TextRows{first.key, first.value};
  }
  const auto in_order = [&](const at::Tensor Segment::*part) {
    const at::Tensor& like = first.*part;
    const at::Tensor result = at::empty({n, like.size(1), like.size(2)}, like.options());
    for (const Segment& segment : segments) {
      place((segment.*part).to(like.scalar_type()), segment.positions.contiguous(), result);
    }
    return result;
  };
  return TextRows{in_order(&Segment::key), in_order(&Segment::value)};
}

}  // namespace

void FirstRows::append(const at::Tensor& key, const at::Tensor& value, std::int64_t most,
                       at::ScalarType type) {
  for (auto [rows, x] : {std::pair(&key_, &key), {&value_, &value}}) {
    if (count_ == 0) {
      *rows = at::empty({most, x->size(1), x->size(2)}, type);
    }
    rows->narrow(0, count_, x->size(0)).copy_(*x);
  }
  count_ += key.size(0);
}

void FirstRows::clear() { *this = FirstRows(); }

FirstRows& PromptKeys::rows_of(int layer) {
  if (layer != layer_) {
    layer_ = layer;
    rows_.clear();
  }
  return rows_;
}

// Rows are bfloat16 where attention takes it and the keys are, otherwise float32.
at::Tensor PromptKeys::attend(int layer, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const AttentionRule& rule) {
  if (key.size(0) == num_tokens_) {
    return causal_attention(query, key, value, rule);
  }
  FirstRows& rows = rows_of(layer);
  const at::ScalarType type = can_attend_in_bfloat16(key, {}) ? at::kBFloat16 : at::kFloat;
  rows.append(key, value, num_tokens_, type);
  at::Tensor output = attend_prompt(query, rows.key(), rows.value(), rule);
  if (rows.count() == num_tokens_) {
    rows.clear();
  }
  return output;
}

at::Tensor attend_prompt(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const AttentionRule& rule) {
  if (can_attend_in_bfloat16(query, rule)) {
    return bfloat16_attention(query, key, value, rule).flatten(1);
  }
  if (rule.softcap != 0) {
    return attend_capped(query, key, value, rule);
  }
  const std::int64_t n = key.size(0), num_queries = query.size(0);
  const std::int64_t width = std::max(key.size(2), value.size(2));
  const Operands operands{
      .query = padded_heads_first(query.to(at::kFloat), width),
      .key = padded_heads_first(key.to(at::kFloat), width),
      .value = padded_heads_first(value.to(at::kFloat), width),
      .scale = rule.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(2))))};
  const at::Tensor attended = rule.window && n > *rule.window
                                  ? attend_window(operands, *rule.window)
                                  : attend_all(operands);
  return attended.narrow(-1, 0, value.size(2))
      .squeeze(0)
      .transpose(0, 1)
      .reshape({num_queries, -1})
      .to(query.scalar_type());
}

at::Tensor attend_text(const at::Tensor& query, const at::Tensor& query_positions,
                       const std::vector<Segment>& segments, const AttentionRule& rule) {
  const bool by_segments =
      is_few(query.size(0)) || (rule.softcap != 0 && !can_attend_in_bfloat16(query, rule));
  const std::optional<TextRows> rows =
      by_segments ? std::nullopt : rows_of_text(segments, query_positions);
  return rows ? attend_prompt(query, rows->key, rows->value, rule)
              : attend_segments(query, query_positions, segments, rule);
}

}  // namespace kvc
