#include "runtime/compression/coding.h"

#include <algorithm>
#include <vector>

#include "runtime/compression/key_forms.h"

namespace kvc {
namespace {

// Exact rows first .. first + count - 1 of all layers of the store; [count, num_kv_heads, head_dim]
// float32 each.
std::vector<DecodedTokens> exact_rows(const CodedView& coded, std::int64_t first,
                                      const at::Tensor& positions) {
  const std::int64_t count = positions.size(0);
  std::vector<DecodedTokens> layers;
  for (std::size_t index = 0; index < coded.store.exact.size(); ++index) {
    const KeyValueStore& rows = coded.store.exact[index];
    const at::Tensor key = rows.key.rows(first, count, at::kFloat);
    layers.push_back(
        {key_for_codes(coded.decoder, coded.layer(static_cast<int>(index)), key, positions),
         rows.value.rows(first, count, at::kFloat)});
  }
  return layers;
}

// The stacked y of a block. [count, n]
at::Tensor stacked(const std::vector<DecodedTokens>& layers, const CodedBlock& block) {
  std::vector<at::Tensor> parts;
  const auto add = [&](const at::Tensor& part) {
    parts.push_back(block.head < 0 ? part.flatten(1) : part.select(1, block.head));
  };
  for (const DecodedTokens& layer : layers) {
    if (block.has_keys()) {
      add(layer.key);
    }
    if (block.has_values()) {
      add(layer.value);
    }
  }
  return at::cat(parts, 1);
}

// y - mean, as E reads it.
at::Tensor centred(const std::vector<DecodedTokens>& layers, const CodedBlock& block,
                   const CodedBlockFactors& factors, const TurnKeys& turn, bool begins_text) {
  const at::Tensor y = stacked(layers, block) - factors.mean;
  if (begins_text && factors.first_mean.defined()) {
    y[0] += factors.mean - factors.first_mean;
  }
  return block.rotated ? turn(y.unsqueeze(1)).squeeze(1) : y;
}

// Positions of coded tokens.
at::Tensor code_positions(const CodedView& coded, std::int64_t first, std::int64_t count) {
  const CodedStore& store = coded.store;
  const std::int64_t sinks = coded.plan.compression.sink_tokens;
  return store.columns.empty() ? at::arange(sinks + first, sinks + first + count, at::kLong)
                               : store.positions().codes.rows(first, count, at::kInt).to(at::kLong);
}

// Keys of block `i`, before RoPE, from its coefficients. [count, channels]
at::Tensor rebuild_keys(const CodedView& coded, std::size_t i, int index, const at::Tensor& z,
                        std::int64_t first) {
  const CodedBlockFactors& factors = coded.block(i);
  const at::Tensor keys = at::mm(z, factors.key_rows(index).t());
  if (!coded.spec(i).rotated) {
    return keys.add_(factors.key_mean[index]);
  }
  const at::Tensor positions = code_positions(coded, first, z.size(0));
  return coded.decoder.rope()
      .unrotate(coded.layer(index), keys.unsqueeze(1), positions)
      .squeeze(1)
      .add(factors.key_mean[index]);
}

// Coefficients of tokens at `positions`, for every block of the store. [n, num_coefficients] each
std::vector<at::Tensor> encode(const CodedView& coded, const std::vector<DecodedTokens>& tokens,
                               const at::Tensor& positions) {
  return coefficients_of(
      coded.plan, coded.store.layers, {&coded.block(0), coded.store.codes.size()}, tokens,
      [&](const at::Tensor& keys) {
        return turn_key(coded.decoder.rope(), coded.layer(0), keys, positions);
      },
      positions[0].item<std::int64_t>() == 0);
}

// To the store that `coded` views.
void append(const CodedView& coded, const std::vector<at::Tensor>& z, CodedStore& store) {
  for (std::size_t i = 0; i < z.size(); ++i) {
    store.codes[i].append(z[i], coded.block(i).steps);
  }
}

}  // namespace

std::vector<at::Tensor> coefficients_of(const KvPlan& plan, const CodedLayers& layers,
                                        std::span<const CodedBlockFactors> factors,
                                        const std::vector<DecodedTokens>& tokens,
                                        const TurnKeys& turn, bool begins_text) {
  std::vector<at::Tensor> z;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const auto block = static_cast<std::size_t>(layers.first_block) + i;
    z.push_back(at::linear(centred(tokens, plan.coded[block], factors[i], turn, begins_text),
                           factors[i].encoder.to(at::kFloat)));
  }
  return z;
}

std::vector<at::Tensor> encode_exact(const CodedView& coded, std::int64_t first,
                                     const at::Tensor& positions) {
  return encode(coded, exact_rows(coded, first, positions), positions);
}

void code_tokens(const Decoder& decoder, const KvPlan& plan, const CodedFactors& factors,
                 CodedStore& store) {
  const CodedView view{decoder, plan, factors, store};
  const std::int64_t sinks = plan.compression.sink_tokens;
  const std::int64_t count = tokens_in_blocks(plan, store.num_exact());
  const std::int64_t coded = store.num_codes();
  if (count == 0) {
    return;
  }
  for (std::int64_t done = 0; done < count; done += kChunkTokens) {
    const std::int64_t rows = std::min(kChunkTokens, count - done);
    const at::Tensor positions =
        store.columns.empty()
            ? at::arange(sinks + coded + done, sinks + coded + done + rows, at::kLong)
            : store.positions().exact.rows(sinks + done, rows, at::kInt).to(at::kLong);
    append(view, encode_exact(view, sinks + done, positions), store);
  }
  for (KeyValueStore& rows : store.exact) {
    rows.key.erase(sinks, count);
    rows.value.erase(sinks, count);
  }
  for (TokenColumn& column : store.columns) {
    column.move(sinks, count);
  }
}

DecodedTokens decode_tokens(const CodedView& coded, int index, std::int64_t first,
                            std::int64_t count) {
  std::vector<at::Tensor> keys, values;
  for (std::size_t i = 0; i < coded.store.codes.size(); ++i) {
    const CodedBlockFactors& of_block = coded.block(i);
    const at::Tensor z = coded.store.codes[i].coefficients(first, count, of_block.steps);
    const bool begins_text = first == 0 && of_block.first_mean.defined();
    if (coded.spec(i).has_keys()) {
      keys.push_back(rebuild_keys(coded, i, index, z, first));
      if (begins_text) {
        keys.back()[0] += of_block.first_key[index];
      }
    }
    if (coded.spec(i).has_values()) {
      values.push_back(at::addmm(of_block.value_mean[index], z, of_block.value_rows(index).t()));
      if (begins_text) {
        values.back()[0] += of_block.first_value[index];
      }
    }
  }
  const std::vector<std::int64_t> shape{count, coded.plan.num_kv_heads, coded.plan.head_dim};
  return {at::cat(keys, 1).view(shape), at::cat(values, 1).view(shape)};
}

}  // namespace kvc
