#include "runtime/attention/coded_prompt.h"

#include <algorithm>
#include <cmath>

#include "core/kv_plan_bytes.h"
#include "model/parallel.h"
#include "runtime/compression/coding.h"
#include "runtime/compression/key_forms.h"
#include "runtime/kernels/prompt_attention.h"
#include "runtime/store/element_type.h"
#include "runtime/store/token_counts.h"

namespace kvc {
namespace {

constexpr std::int64_t kProductsOfOneThread = 1'000'000;

// [tokens, heads, head_dim], of the tokens before `last`.
TokenRows rows_before(std::int64_t last, const at::Tensor& x) {
  return {.data = x.data_ptr(),
          .element = element_of(x.scalar_type()),
          .token_stride = x.stride(0),
          .head_stride = x.stride(1),
          .first = last - x.size(0),
          .last = last};
}

struct Rows {
  at::Tensor key, value;  // [n, num_kv_heads, head_dim], keys post-RoPE
};

at::Tensor attend(const at::Tensor& query, const Rows& coded, const Rows& exact, std::int64_t end,
                  const AttentionRule& rule, std::int64_t exact_tiles) {
  const at::Tensor queries = query.contiguous();
  at::Tensor output = at::empty_like(queries);
  PromptAttention params{.query = rows_before(end, queries),
                         .output = rows_before(end, output),
                         .exact_key = rows_before(end, exact.key),
                         .exact_value = rows_before(end, exact.value),
                         .num_heads = query.size(1),
                         .num_kv_heads = exact.key.size(1),
                         .head_dim = query.size(2),
                         .scale = static_cast<float>(rule.scale.value_or(
                             1 / std::sqrt(static_cast<double>(query.size(2))))),
                         .softcap = static_cast<float>(rule.softcap),
                         .window = rule.window.value_or(0),
                         .exact_tiles = exact_tiles};
  params.coded_key = rows_before(coded.key.size(0), coded.key);
  params.coded_value = rows_before(coded.value.size(0), coded.value);
  const std::int64_t pieces = prompt_pieces(params);
  const bool is_short = end * query.numel() < kProductsOfOneThread;
  parallel_pieces(pieces, is_short ? pieces : 1, [&](std::int64_t first, std::int64_t last) {
    prompt_attention(params, first, last);
  });
  return output.flatten(1);
}

// One layer's store while it reads a prompt.
class CodedPrompt {
 public:
  CodedPrompt(const SourceContext& context, int layer, std::int64_t prompt_end,
              at::ScalarType dtype, CodedStore& store)
      : context_(context),
        layer_(layer),
        prompt_end_(prompt_end),
        dtype_(dtype),
        store_(store),
        is_raw_(stores_raw_keys(context.decoder.config(), layer)) {}

  std::int64_t num_tokens() const { return store_.num_codes() + store_.num_exact(); }

  // The window's exact rows and those of `tokens`, which are stored; what leaves the window becomes codes.
  Rows store(const NewTokens& tokens) {
    const std::int64_t count = tokens.positions.size(0), first = store_.num_codes();
    KeyValueStore& rows = store_.exact.front();
    std::vector<at::Tensor> keys{rows.key.rows(dtype_)}, values{rows.value.rows(dtype_)};
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t step = coded_prompt_step(num_tokens(), count - done);
      rows.append((is_raw_ ? tokens.raw.key : tokens.key).narrow(0, done, step),
                  tokens.raw.value.narrow(0, done, step));
      keys.push_back(rows.key.rows(rows.num_exact() - step, step, dtype_));
      values.push_back(rows.value.rows(rows.num_exact() - step, step, dtype_));
      code_tokens(context_.decoder, context_.plan, context_.factors.coded, store_);
      done += step;
    }
    const at::Tensor key = at::cat(keys);
    return {is_raw_ ? turned(key, first) : key, at::cat(values)};
  }

  // Rows of codes of the layer's first `count` tokens, which `rows` holds some of.
  void rebuild(std::int64_t count, FirstRows& rows) const {
    const CodedView coded{context_.decoder, context_.plan, context_.factors.coded, store_};
    while (rows.count() < count) {
      const std::int64_t first = rows.count();
      const DecodedTokens decoded =
          decode_tokens(coded, 0, first, std::min(kChunkTokens, count - first));
      rows.append(turned(decoded.key.to(dtype_), first), decoded.value,
                  exact_start(prompt_end_ - 1, exact_tiles()), dtype_);
    }
  }

  std::int64_t exact_tiles() const {
    return 1 + context_.plan.compression.window_tokens / kTileTokens;
  }

 private:
  at::Tensor turned(const at::Tensor& key, std::int64_t first) const {
    return context_.decoder.rope().rotate(
        layer_, key, at::arange(first, first + key.size(0), at::kLong), prompt_end_);
  }

  const SourceContext& context_;
  int layer_;
  std::int64_t prompt_end_;
  at::ScalarType dtype_;
  CodedStore& store_;
  bool is_raw_;
};

}  // namespace

at::Tensor read_coded_prompt(const SourceContext& context, int layer, const NewTokens& tokens,
                             const at::Tensor& query, CodedStore& store, PromptKeys& prompt) {
  CodedPrompt coded_prompt(context, layer, tokens.prompt_end, query.scalar_type(), store);
  const Rows exact = coded_prompt.store(tokens);
  const std::int64_t end = coded_prompt.num_tokens();
  const std::int64_t num_coded = exact_start(end - 1, coded_prompt.exact_tiles());
  FirstRows& rows = prompt.rows_of(layer);
  coded_prompt.rebuild(num_coded, rows);
  const Rows coded = num_coded > 0 ? Rows{rows.key(), rows.value()}
                                   : Rows{exact.key.narrow(0, 0, 0), exact.value.narrow(0, 0, 0)};
  at::Tensor output =
      attend(query, coded, exact, end, attention_rule(context.decoder.config(), layer),
             coded_prompt.exact_tiles());
  if (end == tokens.prompt_end) {
    rows.clear();
  }
  return output;
}

}  // namespace kvc
