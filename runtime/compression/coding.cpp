#include "runtime/compression/coding.h"

#include <algorithm>
#include <vector>

#include "runtime/compression/key_forms.h"

namespace kvc {
namespace {

constexpr std::int64_t kTokensAtOnce = 1024;  // bounds the float32 copy of keys and values

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

std::vector<at::Tensor> encode_exact(const CodedView& coded, std::int64_t first,
                                     const at::Tensor& positions) {
  return coefficients_of(coded.plan, coded.store.layers,
                         {&coded.block(0), coded.store.codes.size()},
                         exact_rows(coded, first, positions));
}

void code_tokens(const Decoder& decoder, const KvPlan& plan, const CodedFactors& factors,
                 CodedStore& store) {
  const CodedView view{decoder, plan, factors, store};
  const std::int64_t sinks = plan.compression.sink_tokens;
  const std::int64_t count = coded_tokens(plan, store.num_exact());
  const std::int64_t coded = store.num_codes();
  for (std::int64_t done = 0; done < count; done += kTokensAtOnce) {
    const std::int64_t rows = std::min(kTokensAtOnce, count - done);
    const at::Tensor positions =
        store.columns.empty()
            ? at::arange(sinks + coded + done, sinks + coded + done + rows, at::kLong)
            : store.positions().exact.rows(sinks + done, rows, at::kInt).to(at::kLong);
    const std::vector<at::Tensor> z = encode_exact(view, sinks + done, positions);
    for (std::size_t i = 0; i < z.size(); ++i) {
      store.codes[i].append(z[i], view.block(i).steps);
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

DecodedTokens decode_tokens(const CodedView& coded, int index, std::int64_t first,
                            std::int64_t count) {
  const KvPlan& plan = coded.plan;
  std::vector<at::Tensor> keys, values;
  for (std::size_t i = 0; i < coded.store.codes.size(); ++i) {
    const CodedBlockFactors& of_block = coded.block(i);
    const int head = plan.coded[static_cast<std::size_t>(coded.store.layers.first_block) + i].head;
    const std::int64_t width = head < 0 ? plan.kv_dim() : plan.head_dim;
    const at::Tensor z = coded.store.codes[i].coefficients(first, count, of_block.steps);
    keys.push_back(rebuild(of_block, z, 2 * index * width, of_block.key_rows(index)));
    values.push_back(rebuild(of_block, z, (2 * index + 1) * width, of_block.value_rows(index)));
  }
  const std::vector<std::int64_t> shape{count, plan.num_kv_heads, plan.head_dim};
  return {at::cat(keys, 1).view(shape), at::cat(values, 1).view(shape)};
}

}  // namespace kvc
