#include "runtime/compression/coding.h"

#include <algorithm>
#include <vector>

#include "runtime/attention/plain_attention.h"

namespace kvc {
namespace {

constexpr std::int64_t kTokensAtOnce = 1024;  // bounds the float32 copy of keys and values

// Exact rows first .. first + count - 1 of all layers of the store; [count, num_kv_heads, head_dim]
// float32 each.
std::vector<DecodedTokens> exact_rows(const Decoder& decoder, const CodedStore& store,
                                      std::int64_t first, const at::Tensor& positions) {
  const std::int64_t count = positions.size(0);
  std::vector<DecodedTokens> layers;
  for (int index = 0; index < store.layers.num_layers; ++index) {
    const KeyValueStore& rows = store.exact[static_cast<std::size_t>(index)];
    const at::Tensor key = rows.key.rows(first, count, at::kFloat);
    layers.push_back({key_for_codes(decoder, store.layers.first_layer + index, key, positions),
                      rows.value.rows(first, count, at::kFloat)});
  }
  return layers;
}

// The stacked y of a block. [count, n]
at::Tensor stacked(const std::vector<DecodedTokens>& layers, int head) {
  std::vector<at::Tensor> parts;
  for (const DecodedTokens& layer : layers) {
    for (const at::Tensor& part : {layer.key, layer.value}) {
      parts.push_back(head < 0 ? part.flatten(1) : part.select(1, head));
    }
  }
  return at::cat(parts, 1);
}

// F z + mean of the channels from `first` on that F's `rows` are of.
at::Tensor rebuild(const CodedBlockFactors& factors, const at::Tensor& z, std::int64_t first,
                   const at::Tensor& rows) {
  return at::addmm(factors.mean.narrow(0, first, rows.size(0)), z, rows.t());
}

}  // namespace

const CodedBlockFactors& factors_of(const CodedFactors& factors, const CodedStore& store,
                                    std::size_t block) {
  return factors.blocks[static_cast<std::size_t>(store.layers.first_block) + block];
}

std::vector<at::Tensor> coefficients_of(const KvPlan& plan, const CodedLayers& layers,
                                        std::span<const CodedBlockFactors> factors,
                                        const std::vector<DecodedTokens>& tokens) {
  std::vector<at::Tensor> z;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const auto block = static_cast<std::size_t>(layers.first_block) + i;
    const at::Tensor y = stacked(tokens, plan.coded[block].head);
    z.push_back(at::linear(y - factors[i].mean, factors[i].encoder.to(at::kFloat)));
  }
  return z;
}

std::vector<at::Tensor> encode_exact(const Decoder& decoder, const KvPlan& plan,
                                     const CodedFactors& factors, const CodedStore& store,
                                     std::int64_t first, const at::Tensor& positions) {
  return coefficients_of(plan, store.layers, {&factors_of(factors, store, 0), store.codes.size()},
                         exact_rows(decoder, store, first, positions));
}

void code_tokens(const Decoder& decoder, const KvPlan& plan, const CodedFactors& factors,
                 CodedStore& store) {
  const std::int64_t sinks = plan.policy.sink_tokens;
  const std::int64_t count = coded_tokens(plan, store.num_exact());
  const std::int64_t coded = store.num_codes();
  for (std::int64_t done = 0; done < count; done += kTokensAtOnce) {
    const std::int64_t rows = std::min(kTokensAtOnce, count - done);
    const at::Tensor positions =
        store.columns.empty()
            ? at::arange(sinks + coded + done, sinks + coded + done + rows, at::kLong)
            : store.positions().exact.rows(sinks + done, rows, at::kInt).to(at::kLong);
    const std::vector<at::Tensor> z =
        encode_exact(decoder, plan, factors, store, sinks + done, positions);
    for (std::size_t i = 0; i < z.size(); ++i) {
      store.codes[i].append(z[i], factors_of(factors, store, i).steps);
    }
  }
  for (KeyValueStore& rows : store.exact) {
    rows.key.erase(sinks, count);
    rows.value.erase(sinks, count);
  }
  for (TokenColumn& column : store.columns) {
    if (count > 0) {
      column.move(sinks, count);
    }
  }
}

DecodedTokens decode_tokens(const KvPlan& plan, const CodedFactors& factors,
                            const CodedStore& store, int index, std::int64_t first,
                            std::int64_t count) {
  const CodedLayers& layers = store.layers;
  std::vector<at::Tensor> keys, values;
  for (int i = 0; i < layers.num_blocks; ++i) {
    const auto block = static_cast<std::size_t>(layers.first_block + i);
    const CodedBlockFactors& of_block = factors.blocks[block];
    const std::int64_t width = plan.coded[block].head < 0 ? plan.kv_dim() : plan.head_dim;
    const at::Tensor z =
        store.codes[static_cast<std::size_t>(i)].coefficients(first, count, of_block.steps);
    keys.push_back(rebuild(of_block, z, 2 * index * width, of_block.key_rows(index)));
    values.push_back(rebuild(of_block, z, (2 * index + 1) * width, of_block.value_rows(index)));
  }
  const std::vector<std::int64_t> shape{count, plan.num_kv_heads, plan.head_dim};
  return {at::cat(keys, 1).view(shape), at::cat(values, 1).view(shape)};
}

}  // namespace kvc
