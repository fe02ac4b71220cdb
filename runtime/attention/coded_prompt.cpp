#include "runtime/attention/coded_prompt.h"

#include <algorithm>
#include <cmath>

#include "core/kv_plan_bytes.h"
#include "model/parallel.h"
#include "runtime/attention/exact_tiles.h"
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
                  const AttentionRule& rule, const ExactTiles& exact_tokens) {
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
                         .exact_tiles = exact_tokens.tiles,
                         .sinks = exact_tokens.sinks};
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
        is_raw_(stores_raw_keys(context.decoder.config(), layer)),
        exact_(exact_tiles(context.plan)) {}

  std::int64_t num_tokens() const { return store_.num_codes() + store_.num_exact(); }

  const ExactTiles& exact() const { return exact_; }

  // The window's exact rows and those of `tokens`, which are stored; what leaves the window becomes codes. Sinks are among
  // them where no codes follow them yet.
  Rows store(const NewTokens& tokens) {
    const std::int64_t count = tokens.positions.size(0);
    const std::int64_t skipped = store_.num_codes() > 0 ? exact_.sinks : 0;
    const std::int64_t first = store_.num_codes() + skipped;
    KeyValueStore& rows = store_.exact.front();
    const std::int64_t stored = rows.num_exact() - skipped;
    std::vector<at::Tensor> keys{rows.key.rows(skipped, stored, dtype_)};
    std::vector<at::Tensor> values{rows.value.rows(skipped, stored, dtype_)};
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

  // Rows of the layer's first `count` tokens, which `rows` holds some of: sinks, and what codes say of the others.
  void rebuild(std::int64_t count, FirstRows& rows) const {
    const CodedView coded{context_.decoder, context_.plan, context_.factors.coded, store_};
    const std::int64_t most = exact_.start(prompt_end_ - 1);
    if (rows.count() == 0 && count > 0 && exact_.sinks > 0) {
      const KeyValueStore& stored = store_.exact.front();
      const at::Tensor key = stored.key.rows(0, exact_.sinks, dtype_);
      rows.append(is_raw_ ? turned(key, 0) : key, stored.value.rows(0, exact_.sinks, dtype_), most,
                  dtype_);
    }
    while (rows.count() < count) {
      const std::int64_t first = rows.count();
      const DecodedTokens decoded =
          decode_tokens(coded, 0, first - exact_.sinks, std::min(kChunkTokens, count - first));
      rows.append(turned(decoded.key.to(dtype_), first), decoded.value, most, dtype_);
    }
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
  ExactTiles exact_;
};

}  // namespace

at::Tensor read_coded_prompt(const SourceContext& context, int layer, const NewTokens& tokens,
                             const at::Tensor& query, CodedStore& store, PromptKeys& prompt) {
  CodedPrompt coded_prompt(context, layer, tokens.prompt_end, query.scalar_type(), store);
  const Rows exact = coded_prompt.store(tokens);
  const std::int64_t end = coded_prompt.num_tokens();
  const std::int64_t num_coded = coded_prompt.exact().start(end - 1);
  FirstRows& rows = prompt.rows_of(layer);
  coded_prompt.rebuild(num_coded, rows);
  const Rows coded = num_coded > 0 ? Rows{rows.key(), rows.value()}
                                   : Rows{exact.key.narrow(0, 0, 0), exact.value.narrow(0, 0, 0)};
  at::Tensor output = attend(query, coded, exact, end,
                             attention_rule(context.decoder.config(), layer), coded_prompt.exact());
  if (end == tokens.prompt_end) {
    rows.clear();
  }
  return output;
}

}  // namespace kvc
