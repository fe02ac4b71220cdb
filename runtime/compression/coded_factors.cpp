#include "runtime/compression/coded_factors.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "model/basis_codes.h"
#include "model/factor_specs.h"
#include "model/key_bases.h"
#include "model/weights.h"
#include "runtime/store/tile_store.h"

namespace kvc {
namespace {

at::Tensor first_levels(const TileLayout& layout, const at::Tensor& steps) {
  at::Tensor levels = steps.clone();
  std::int64_t first = 0;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    levels.narrow(0, first, layout.coefficients[bits]).mul_(first_level(bits));
    first += layout.coefficients[bits];
  }
  return levels;
}

// Names, shapes and where a block's channels are.
struct BlockShape {
  BlockShape(const KvPlan& plan, std::size_t block)
      : spec(plan.coded[block]),
        prefix(fmt::format("kvconvert.coded.{}.", block)),
        heads(spec.head < 0 ? plan.num_kv_heads : 1),
        head_dim(plan.head_dim),
        n(coded_channels(plan, spec)),
        k(spec.num_coefficients()),
        factors(coded_factors(plan, static_cast<int>(block), k)) {}

  // float32
  at::Tensor load(const Checkpoint& checkpoint, const char* tensor) const {
    return load_factor(checkpoint, factors, prefix + tensor, at::kFloat);
  }

  // Keys, or values, of a tensor with a row per channel: [num_layers, channels, ...].
  at::Tensor part(const at::Tensor& rows, bool values) const {
    std::vector<std::int64_t> shape = rows.sizes().vec();
    shape.front() = heads * head_dim;
    shape.insert(shape.begin(), {spec.num_layers, spec.num_parts() / spec.num_layers});
    return rows.view(shape).select(1, values && spec.has_keys() ? 1 : 0).contiguous();
  }

  const CodedBlock& spec;
  std::string prefix;
  std::int64_t heads, head_dim, n, k;
  std::vector<FactorSpec> factors;
};

// Dense E and F, float32. channels: of the keys' bases.
BasisTransform load_transform(const Checkpoint& checkpoint, const BlockShape& block,
                              const at::Tensor& channels) {
  const std::string& prefix = block.prefix;
  const std::int64_t k = block.k;
  if (block.spec.bases == 1 && checkpoint.contains(basis_code_name(prefix))) {
    const BasisTransform transform =
        decode_basis(load_basis_codes(checkpoint, prefix, block.n, k), k, prefix + "*");
    return {transform.encoder.to(at::kFloat), transform.decoder.to(at::kFloat)};
  }
  const BasisTransform stored{block.load(checkpoint, "encoder"), block.load(checkpoint, "decoder")};
  if (block.spec.bases == 1) {
    return stored;
  }
  KVC_CHECK(!block.spec.rotated || stored.decoder.ne(0).sum(0).le(1).all().item<bool>(),
            "{}decoder: a rotated coefficient of two channels, expected of one; export again",
            prefix);
  return join_bases({stored, block.load(checkpoint, "basis")}, channels, prefix + "basis");
}

// The rows of keys, for the kernels. decoder: [n, k]
std::vector<CodedKeyRows> key_rows_of(const BlockShape& block, const at::Tensor& decoder,
                                      const CodedBlockFactors& factors,
                                      const at::Tensor& channels) {
  const at::Tensor rows = block.part(decoder, /*values=*/false);
  const at::Tensor order = channels.to(at::kInt).contiguous();
  const KeyBases bases{
      .count = block.spec.bases,
      .rotated = block.spec.rotated,
      .channels = block.spec.bases == 1 ? nullptr : order.const_data_ptr<std::int32_t>()};
  const auto* row = rows.const_data_ptr<float>();
  const auto* mean = factors.key_mean.const_data_ptr<float>();
  std::vector<CodedKeyRows> keys;
  for (std::int64_t head = 0; head < block.spec.num_layers * block.heads; ++head) {
    keys.emplace_back(tile_layout(block.spec), row + head * block.head_dim * block.k, block.k,
                      block.head_dim, factors.steps.const_data_ptr<float>(),
                      mean + head * block.head_dim, bases);
  }
  return keys;
}

// Code 0 has the value of half a step: a first token that equals `first` is decoded exactly.
void set_first_mean(const BlockShape& block, const at::Tensor& first, const at::Tensor& decoder,
                    CodedBlockFactors& factors) {
  const at::Tensor half_steps = factors.steps / 2;
  factors.first_mean = first - at::mv(decoder, half_steps);
  for (const bool values : {false, true}) {
    if (!(values ? block.spec.has_values() : block.spec.has_keys())) {
      continue;
    }
    const at::Tensor& mean = values ? factors.value_mean : factors.key_mean;
    at::Tensor& own = values ? factors.first_value : factors.first_key;
    own = block.part(first, values) - mean;
    for (int index = 0; index < block.spec.num_layers; ++index) {
      own[index] -=
          at::mv(values ? factors.value_rows(index) : factors.key_rows(index), half_steps);
    }
  }
}

CodedBlockFactors load_block(const Checkpoint& checkpoint, const KvPlan& plan,
                             const BlockShape& block, const ModelConfig& config) {
  const auto load = [&](const char* tensor) { return block.load(checkpoint, tensor).clone(); };
  CodedBlockFactors factors;
  factors.mean = load("mean");
  factors.steps = load("steps");
  KVC_CHECK(factors.steps.isfinite().logical_and(factors.steps > 0).all().item<bool>(),
            "{}steps: a step that is not positive and finite; export again", block.prefix);
  factors.first_levels = first_levels(tile_layout(block.spec), factors.steps);
  const at::Tensor channels = key_basis_channels(config, block.spec.first_layer, block.spec.bases);
  const BasisTransform transform = load_transform(checkpoint, block, channels);
  factors.encoder = to_half_or_float(transform.encoder);
  if (block.spec.has_keys()) {
    factors.key_mean = block.part(factors.mean, /*values=*/false);
    factors.keys = key_rows_of(block, transform.decoder, factors, channels);
  }
  if (block.spec.has_values()) {
    factors.value_mean = block.part(factors.mean, /*values=*/true);
    factors.value_decoder = block.part(transform.decoder, /*values=*/true);
  }
  if (codes_first_token(plan)) {
    set_first_mean(block, load("first"), transform.decoder, factors);
  }
  return factors;
}

}  // namespace

at::Tensor CodedBlockFactors::key_rows(int index) const {
  const std::int64_t channels = key_mean.size(1), k = steps.size(0);
  const std::int64_t head_dim = keys.front().head_dim();
  at::Tensor rows = at::empty({channels, k}, at::kFloat);
  const auto* step = steps.const_data_ptr<float>();
  auto* row = rows.mutable_data_ptr<float>();
  for (std::int64_t channel = 0; channel < channels; ++channel, row += k) {
    const CodedKeyRows& head =
        keys[static_cast<std::size_t>((index * channels + channel) / head_dim)];
    const std::int64_t d = channel % head_dim;
    for (std::int64_t c = 0; c < k; ++c) {
      row[c] = head.weight(d, c) / step[c];
    }
  }
  return rows;
}

std::int64_t CodedFactors::bytes() const {
  std::int64_t bytes = 0;
  for (const CodedBlockFactors& block : blocks) {
    for (const at::Tensor& tensor : {block.encoder, block.mean, block.first_mean, block.key_mean,
                                     block.value_mean, block.value_decoder, block.steps,
                                     block.first_levels, block.first_key, block.first_value}) {
      bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
    }
    for (const CodedKeyRows& keys : block.keys) {
      bytes += keys.bytes();
    }
  }
  return bytes;
}

CodedFactors load_coded_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                const ModelConfig& config) {
  CodedFactors factors;
  for (std::size_t block = 0; block < plan.coded.size(); ++block) {
    factors.blocks.push_back(load_block(checkpoint, plan, BlockShape(plan, block), config));
  }
  return factors;
}

}  // namespace kvc
