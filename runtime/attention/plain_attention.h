// Attention over the store of a plain layer: exact rows and, under an integer type, codes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/decode.h"
#include "runtime/compression/key_forms.h"
#include "runtime/kernels/decode_attention.h"
#include "runtime/store/key_value_store.h"

namespace kvc {

// Order of the tokens of a layer with codes: the sinks (exact), the codes, the last tokens (exact).
struct TokenOrder {
  std::int64_t sinks = 0, codes = 0, last = 0;

  TokenOrder(std::int64_t num_exact, std::int64_t num_codes, std::int64_t sink_tokens);
  std::int64_t num_tokens() const { return sinks + codes + last; }
  TokenOrder up_to(std::int64_t num_tokens) const;  // the first tokens, all codes among them
  at::Tensor code_positions() const;                // [codes]
  at::Tensor exact_positions() const;               // [sinks + last]
};

// Queries of one sequence's last tokens. query [T, num_heads, head_dim] post-RoPE, positions [T].
// [T, num_heads * head_dim] in the query's dtype.
at::Tensor attend_plain(const Decoder& decoder, int layer, const KeyValueStore& store,
                        std::int64_t sink_tokens, const at::Tensor& query,
                        const at::Tensor& positions);

// Angles that rotate the codes of a layer's keys when the kernel reads them, at positions below
// num_tokens; none if codes are of rotated keys. The tensors own what `raw_keys` points to.
struct CodedKeys {
  RopeRows rope;
  RawKeys raw_keys;

  CodedKeys() = default;
  CodedKeys(const Decoder& decoder, int layer, std::int64_t num_tokens);
  bool are_raw() const { return rope.cos.defined(); }
};

// Rows of the last `seen` tokens: keys of one store and values of another (or the same) with the same
// tokens in this order.
std::vector<RowRange> plain_ranges(const KeyValueStore& keys, const KeyValueStore& values,
                                   const TokenOrder& order, bool codes_are_raw, std::int64_t seen);

}  // namespace kvc
