#include "runtime/compression/coded_factors.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/error.h"
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

// The integers of every head's key channels. The decoder becomes what they stand for, so that all ways to
// attend rebuild the same keys.
void round_keys(const CodedBlock& block, std::int64_t heads, std::int64_t head_dim,
                CodedBlockFactors& factors) {
  const TileLayout layout = tile_layout(block);
  const auto* steps = factors.steps.const_data_ptr<float>();
  const std::int64_t k = factors.decoder.size(1);
  for (int index = 0; index < block.num_layers; ++index) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t first = (2 * index * heads + head) * head_dim;
      float* rows = factors.decoder.mutable_data_ptr<float>() + first * k;
      const auto* mean = factors.mean.const_data_ptr<float>() + first;
      factors.keys.emplace_back(layout, rows, k, head_dim, steps, mean);
      const CodedKeyRows& keys = factors.keys.back();
      for (std::int64_t d = 0; d < head_dim; ++d) {
        for (std::int64_t c = 0; c < k; ++c) {
          rows[d * k + c] = keys.scale(d) * static_cast<float>(keys.integer(d, c)) / steps[c];
        }
      }
    }
  }
}

}  // namespace

std::int64_t CodedFactors::bytes() const {
  std::int64_t bytes = 0;
  for (const CodedBlockFactors& block : blocks) {
    for (const at::Tensor& tensor :
         {block.encoder, block.decoder, block.mean, block.steps, block.first_levels}) {
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
    const auto load = [&](const char* tensor, const std::vector<std::int64_t>& shape) {
      const std::string name = fmt::format("kvconvert.coded.{}.{}", block, tensor);
      return load_tensor(checkpoint, name, shape, at::kFloat).contiguous().clone();
    };
    CodedBlockFactors of_block{.encoder = load("encoder", {k, n}),
                               .decoder = load("decoder", {n, k}),
                               .mean = load("mean", {n}),
                               .steps = load("steps", {k}),
                               .first_levels = {},
                               .keys = {}};
    KVC_CHECK(of_block.steps.isfinite().logical_and(of_block.steps > 0).all().item<bool>(),
              "kvconvert.coded.{}.steps: a step that is not positive and finite; export again",
              block);
    of_block.first_levels = first_levels(tile_layout(spec), of_block.steps);
    round_keys(spec, heads, plan.head_dim, of_block);
    factors.blocks.push_back(std::move(of_block));
  }
  return factors;
}

}  // namespace kvc
