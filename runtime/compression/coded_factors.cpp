#include "runtime/compression/coded_factors.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/error.h"
#include "model/basis_codes.h"
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

// E and F, float32.
BasisTransform load_transform(const Checkpoint& checkpoint, const std::string& prefix,
                              std::int64_t n, std::int64_t k) {
  if (checkpoint.contains(basis_code_name(prefix))) {
    const BasisTransform transform =
        decode_basis(load_basis_codes(checkpoint, prefix, n, k), k, prefix + "*");
    return {transform.encoder.to(at::kFloat), transform.decoder.to(at::kFloat)};
  }
  return {load_tensor(checkpoint, prefix + "encoder", {k, n}, at::kFloat),
          load_tensor(checkpoint, prefix + "decoder", {n, k}, at::kFloat)};
}

// Shares F, [n, k], out to keys and values.
void set_decoder(const CodedBlock& block, std::int64_t heads, std::int64_t head_dim,
                 const at::Tensor& decoder, CodedBlockFactors& factors) {
  const TileLayout layout = tile_layout(block);
  const std::int64_t k = decoder.size(1), channels = heads * head_dim;
  const auto* mean = factors.mean.const_data_ptr<float>();
  const auto* rows = decoder.const_data_ptr<float>();
  for (std::int64_t index = 0; index < block.num_layers; ++index) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t first = 2 * index * channels + head * head_dim;
      factors.keys.emplace_back(layout, rows + first * k, k, head_dim,
                                factors.steps.const_data_ptr<float>(), mean + first);
    }
  }
  factors.value_decoder =
      decoder.view({block.num_layers, 2, channels, k}).select(1, 1).contiguous();
}

}  // namespace

at::Tensor CodedBlockFactors::key_rows(int index) const {
  const std::int64_t channels = value_decoder.size(1), k = steps.size(0);
  const auto heads = static_cast<std::int64_t>(keys.size()) / value_decoder.size(0);
  const std::int64_t head_dim = channels / heads;
  at::Tensor rows = at::empty({channels, k}, at::kFloat);
  const auto* step = steps.const_data_ptr<float>();
  auto* row = rows.mutable_data_ptr<float>();
  for (std::int64_t channel = 0; channel < channels; ++channel, row += k) {
    const CodedKeyRows& head = keys[static_cast<std::size_t>(index * heads + channel / head_dim)];
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
    for (const at::Tensor& tensor :
         {block.encoder, block.value_decoder, block.mean, block.steps, block.first_levels}) {
      bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
    for (const CodedKeyRows& keys : block.keys) {
      bytes += keys.bytes();
    }
  }
  return bytes;
}

CodedFactors load_coded_factors(const Checkpoint& checkpoint, const KvPlan& plan) {
  CodedFactors factors;
  for (std::size_t block = 0; block < plan.coded.size(); ++block) {
    const CodedBlock& spec = plan.coded[block];
    const std::int64_t k = spec.num_coefficients();
    const std::int64_t heads = spec.head < 0 ? plan.num_kv_heads : 1;
    const std::int64_t n = 2 * spec.num_layers * heads * plan.head_dim;
    const std::string prefix = fmt::format("kvconvert.coded.{}.", block);
    const auto load = [&](const char* tensor, std::int64_t count) {
      return load_tensor(checkpoint, prefix + tensor, {count}, at::kFloat).clone();
    };
    CodedBlockFactors of_block;
    of_block.mean = load("mean", n);
    of_block.steps = load("steps", k);
    KVC_CHECK(of_block.steps.isfinite().logical_and(of_block.steps > 0).all().item<bool>(),
              "{}steps: a step that is not positive and finite; export again", prefix);
    of_block.first_levels = first_levels(tile_layout(spec), of_block.steps);
    const BasisTransform transform = load_transform(checkpoint, prefix, n, k);
    of_block.encoder = to_half_or_float(transform.encoder);
    set_decoder(spec, heads, plan.head_dim, transform.decoder.contiguous(), of_block);
    factors.blocks.push_back(std::move(of_block));
  }
  return factors;
}

}  // namespace kvc
