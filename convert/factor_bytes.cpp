#include "convert/factor_bytes.h"

#include <algorithm>

#include "convert/latent/kept_range.h"
#include "core/kv_plan_bytes.h"
#include "model/basis_codes.h"
#include "model/fused_kv.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kFloatBytes = 4, kHalfBytes = 2;
constexpr std::int64_t kBitsPerCoefficient = 3;  // of those that get any; a typical mean

// Of a factor in the type that is usually chosen, float16.
std::int64_t matrix_bytes(std::int64_t rows, std::int64_t columns) {
  return kHalfBytes * rows * columns;
}

// E and F.
std::int64_t pair_bytes(std::int64_t rank, std::int64_t channels) {
  return 2 * matrix_bytes(rank, channels);
}

std::int64_t principal_bytes(const KvPlan& plan, const LatentGroup& group) {
  const KvWidths widths = grouped_widths(plan);
  const std::int64_t mean = kFloatBytes * group.num_layers * widths.total();
  return mean + (group.split_kv ? pair_bytes(group.key_rank, group.num_layers * widths.key) +
                                      pair_bytes(group.value_rank, group.num_layers * widths.value)
                                : pair_bytes(group.rank, group.num_layers * widths.total()));
}

// A and B of keys and of values.
std::int64_t split_bytes(const LatentGroup& group, const ModelConfig& config) {
  return matrix_bytes(group.rank, config.hidden_size) +
         matrix_bytes(config.kv_dim(), group.key_rank) +
         matrix_bytes(config.kv_dim(), group.value_rank);
}

// A and B where latents are computed, P for least squares, and the refitted B.
std::int64_t joint_bytes(const KvPlan& plan, int index, const ModelConfig& config,
                         const ConvertSettings& settings) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const std::int64_t rows = 2 * group.num_layers * config.kv_dim();
  const bool latents = needs_latents(plan, index);
  const std::int64_t decoders = (latents || !settings.refit ? 1 : 0) + (settings.refit ? 1 : 0);
  return (latents ? matrix_bytes(group.rank, config.hidden_size) : 0) +
         (settings.merge == MergeRule::kLs ? matrix_bytes(group.rank, rows) : 0) +
         decoders * matrix_bytes(rows, group.rank);
}

// Bytes that projections of a layer take in the checkpoint, where they are tensors of their own.
std::int64_t projection_bytes(const ModelConfig& config, int layer) {
  std::int64_t values = 0;
  for (const ProjectionRows& rows : {key_rows(config, layer), value_rows(config, layer)}) {
    values += rows.is_whole() ? rows.num_rows * config.hidden_size : 0;
  }
  return values * bytes_per_element(cache_dtype(config));
}

std::int64_t stored_bytes(const std::vector<std::int64_t>& shape) {
  std::int64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) {
    rows *= shape[axis];
  }
  return matrix_bytes(rows, shape.back());
}

}  // namespace

std::int64_t estimated_block_bytes(const KvPlan& plan, int block) {
  const CodedBlock& spec = plan.coded[static_cast<std::size_t>(block)];
  const std::int64_t n = 2 * spec.num_layers * (spec.head < 0 ? plan.kv_dim() : plan.head_dim);
  const std::int64_t kept = std::clamp<std::int64_t>(spec.bits() / kBitsPerCoefficient, 1, n);
  return kFloatBytes * (n + kept) +
         (n <= kMostCodedBasisChannels ? basis_code_bytes(n, kept, kept / 2) : pair_bytes(kept, n));
}

std::int64_t estimated_group_bytes(const KvPlan& plan, int group, const ModelConfig& config,
                                   const ConvertSettings& settings) {
  const LatentGroup& spec = plan.groups[static_cast<std::size_t>(group)];
  switch (spec.basis) {
    case LatentBasis::kRequest:
      return 0;
    case LatentBasis::kCalibrated:
      return principal_bytes(plan, spec);
    case LatentBasis::kWeights:
      break;
  }
  if (!spec.split_kv) {
    return joint_bytes(plan, group, config, settings);
  }
  return split_bytes(spec, config) - projection_bytes(config, spec.first_layer);
}

std::int64_t estimated_fused_bytes(const KvPlan& plan, const FusedLayer& layer,
                                   const ModelConfig& config) {
  return stored_bytes(fused_shape(plan, layer, true)) +
         stored_bytes(fused_shape(plan, layer, false)) - projection_bytes(config, layer.layer);
}

std::int64_t estimated_factor_bytes(const KvPlan& plan, const ModelConfig& config,
                                    const ConvertSettings& settings) {
  std::int64_t bytes = 0;
  for (std::size_t block = 0; block < plan.coded.size(); ++block) {
    bytes += estimated_block_bytes(plan, static_cast<int>(block));
  }
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    bytes += estimated_group_bytes(plan, static_cast<int>(group), config, settings);
  }
  for (const FusedLayer& layer : plan.fused) {
    bytes += estimated_fused_bytes(plan, layer, config);
  }
  return bytes;
}

}  // namespace kvc
