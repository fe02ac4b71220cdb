// Queries come in blocks. Tokens that all queries of a block see are one product without a mask, by flash attention where a
// GPU has it. The others, of at most a block and a window at either end, are masked. Both parts are joined by the logarithms
// of their sums.
#include "runtime/gpu/coded_prompt_attention.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "model/flash_attention.h"

namespace kvc {
namespace {

constexpr std::int64_t kTokensAtOnce = CodedPromptAttention::kTokensAtOnce;

// Attention to some of the tokens. output [num_heads, n, head_dim], log_sum [num_heads, n]; float32.
struct AttendedPart {
  at::Tensor output, log_sum;
};

AttendedPart joined(const std::optional<AttendedPart>& before, const AttendedPart& part) {
  if (!before) {
    return part;
  }
  const at::Tensor log_sum = at::logaddexp(before->log_sum, part.log_sum);
  const auto weighted = [&](const AttendedPart& own) {
    return own.output * (own.log_sum - log_sum).exp().unsqueeze(-1);
  };
  return {weighted(*before) + weighted(part), log_sum};
}

// hidden: [n, tokens] bool, or undefined. Every query sees a token.
AttendedPart masked_part(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& hidden, const AttentionRule& rule) {
  const std::int64_t n = query.size(0), heads = query.size(1);
  const at::Tensor queries =
      query.to(at::kFloat)
          .transpose(0, 1)
          .reshape({key.size(1), -1, query.size(2)});  // those of a KV head follow each other
  at::Tensor scores =
      at::matmul(queries * attention_scale(query, rule), key.to(at::kFloat).permute({1, 2, 0}))
          .view({heads, n, -1});
  if (rule.softcap != 0) {
    scores = (scores / rule.softcap).tanh() * rule.softcap;
  }
  if (hidden.defined()) {
    scores = scores.masked_fill(hidden, -INFINITY);
  }
  const at::Tensor log_sum = scores.logsumexp(-1);
  const at::Tensor weights =
      (scores - log_sum.unsqueeze(-1)).exp().view({key.size(1), -1, key.size(0)});
  return {at::matmul(weights, value.to(at::kFloat).transpose(0, 1)).view({heads, n, -1}), log_sum};
}

// Attention to tokens that all queries see; at least one.
AttendedPart whole_part(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const AttentionRule& rule) {
  if (has_flash_attention(query, key, value, rule)) {
    const FlashOutput flash = flash_attention(query.unsqueeze(0), key.unsqueeze(0),
                                              value.unsqueeze(0), rule, /*is_causal=*/false);
    return {flash.output[0].to(at::kFloat).transpose(0, 1),
            flash.log_sum[0].narrow(1, 0, query.size(0))};
  }
  std::optional<AttendedPart> part;
  for (std::int64_t first = 0; first < key.size(0); first += kTokensAtOnce) {
    part = joined(part, masked_part(query, key.slice(0, first, first + kTokensAtOnce),
                                    value.slice(0, first, first + kTokensAtOnce), {}, rule));
  }
  return *part;
}

// Tokens first .. last - 1, as they are exactly or as their codes say.
struct Span {
  std::int64_t first, last;
  bool are_exact;
};

at::Tensor between(const at::Tensor& x, const PromptRows& rows, std::int64_t first,
                   std::int64_t last) {
  return x.narrow(0, first - rows.first, last - first);
}

// The queries of the tokens begin .. end - 1.
class QueryBlock {
 public:
  QueryBlock(std::int64_t begin, std::int64_t end, const ExactTiles& tiles, std::int64_t window)
      : begin_(begin),
        end_(end),
        tiles_(tiles),
        window_(window),
        seen_(seen_from(begin)),
        first_exact_(tiles.start(begin)),
        seen_by_all_(std::min(first_exact_, seen_from(end - 1))) {}

  // What all of them see, of `coded`.
  Span whole() const { return {seen_by_all_, first_exact_, false}; }
  // Other tokens that some of them see.
  std::vector<Span> others() const {
    std::vector<Span> spans;
    for (const Span& span : {Span{std::min(seen_, seen_by_all_), seen_by_all_, false},
                             Span{std::max(first_exact_, seen_), tiles_.start(end_ - 1), false},
                             Span{std::max(first_exact_, seen_), end_, true}}) {
      if (span.first < span.last) {
        spans.push_back(span);
      }
    }
    return spans;
  }

  // Which of these tokens a query does not see, [queries, tokens of all] bool.
  at::Tensor hidden() const {
    std::vector<std::int64_t> starts, seen;
    for (std::int64_t token = begin_; token < end_; ++token) {
      starts.push_back(tiles_.start(token));
      seen.push_back(seen_from(token));
    }
    const auto column = [](const std::vector<std::int64_t>& numbers) {
      return at::tensor(numbers, at::kLong).unsqueeze(1);
    };
    const at::Tensor queries = at::arange(begin_, end_, at::kLong).unsqueeze(1);
    std::vector<at::Tensor> hidden;
    for (const Span& span : others()) {
      const at::Tensor tokens = at::arange(span.first, span.last, at::kLong);
      const at::Tensor elsewhere = span.are_exact
                                       ? (tokens < column(starts)).logical_or(tokens > queries)
                                       : tokens >= column(starts);
      hidden.push_back(elsewhere.logical_or(tokens < column(seen)));
    }
    return at::cat(hidden, 1);
  }

 private:
  std::int64_t seen_from(std::int64_t token) const {
    return window_ > 0 ? std::max<std::int64_t>(0, token - window_ + 1) : 0;
  }

  std::int64_t begin_, end_;
  const ExactTiles& tiles_;
  std::int64_t window_;
  std::int64_t seen_, first_exact_, seen_by_all_;
};

// Attention of the block's queries. The same shape.
at::Tensor attend_block(const at::Tensor& query, const QueryBlock& block, const PromptRows& coded,
                        const PromptRows& exact, const at::Tensor& hidden,
                        const AttentionRule& rule) {
  const Span whole = block.whole();
  std::vector<at::Tensor> keys, values;
  for (const Span& span : block.others()) {
    const PromptRows& rows = span.are_exact ? exact : coded;
    keys.push_back(between(rows.key, rows, span.first, span.last));
    values.push_back(between(rows.value, rows, span.first, span.last));
  }
  std::optional<AttendedPart> of_whole;
  if (whole.first < whole.last) {
    of_whole = whole_part(query, between(coded.key, coded, whole.first, whole.last),
                          between(coded.value, coded, whole.first, whole.last), rule);
  }
  const AttendedPart part = masked_part(query, at::cat(keys), at::cat(values), hidden, rule);
  return joined(of_whole, part).output.transpose(0, 1).to(query.scalar_type());
}

}  // namespace

// At the attention window's beginning, through codes, and exactly.
std::int64_t CodedPromptAttention::most_masked_tokens(std::int64_t window) {
  return 3 * kQueriesPerBlock + window + 2 * kTileTokens;
}

at::Tensor CodedPromptAttention::attend(const at::Tensor& query, const PromptRows& coded,
                                        const PromptRows& exact, const AttentionRule& rule) {
  const std::int64_t end = exact.last(), first = end - query.size(0),
                     window = rule.window.value_or(0);
  std::vector<at::Tensor> outputs;
  for (std::int64_t begin = first; begin < end; begin += kQueriesPerBlock) {
    const std::int64_t last = std::min(begin + kQueriesPerBlock, end);
    const QueryBlock block(begin, last, tiles_, window);
    at::Tensor& hidden = hidden_[{begin, window}];
    if (!hidden.defined()) {
      hidden = block.hidden().to(query.device());
    }
    outputs.push_back(attend_block(query.slice(0, begin - first, last - first), block, coded, exact,
                                   hidden, rule));
  }
  return at::cat(outputs).flatten(1);
}

}  // namespace kvc
