#include "convert/latent/latent_settings.h"
#include "model/cache_plan.h"
#include "model/factor_specs.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kBitsPerCoefficient = 3;  // of those that get any; a typical mean

// In the type that is usually chosen: float16 for matrices, float32 for vectors. Without codes.
std::int64_t stored_bytes(const std::vector<FactorSpec>& factors, const StoredForm& form) {
  constexpr std::int64_t kFloatBytes = 4, kHalfBytes = 2;
  std::int64_t bytes = 0;
  for (const FactorSpec& factor : factors) {
    if (factor.use != FactorUse::kCode && is_stored(factor.use, form)) {
      bytes += c10::multiply_integers(factor.shape) *
               (factor.shape.size() > 1 ? kHalfBytes : kFloatBytes);
    }
  }
  return bytes;
}

// Bytes that projections of a layer take in the checkpoint, where they are tensors of their own.
std::int64_t projection_bytes(const ModelConfig& config, int layer) {
  std::int64_t values = 0;
  for (const ProjectionRows& rows : {key_rows(config, layer), value_rows(config, layer)}) {
    values += rows.is_whole() ? rows.num_rows * config.hidden_size : 0;
  }
  return values * bytes_per_element(cache_dtype(config));
}

}  // namespace

std::int64_t estimated_block_bytes(const KvPlan& plan, int block) {
  const CodedBlock& spec = plan.coded[static_cast<std::size_t>(block)];
  const std::int64_t n = coded_channels(plan, spec);
  const std::int64_t kept = std::clamp<std::int64_t>(spec.bits() / kBitsPerCoefficient, 1, n);
  const bool codes = n <= kMostCodedBasisChannels;
  return stored_bytes(coded_factors(plan, block, kept), {.codes = codes}) +
         (codes ? basis_code_bytes(n, kept, kept / 2) : 0);
}

std::int64_t estimated_group_bytes(const KvPlan& plan, int group, const ModelConfig& config,
                                   const ConvertSettings& settings) {
  const LatentGroup& spec = plan.groups[static_cast<std::size_t>(group)];
  const StoredForm form{.latents = needs_latents(plan, group),
                        .refitted = settings.own<LatentSettings>().refit};
  return stored_bytes(group_factors(plan, group, config.hidden_size), form) -
         (spec.replaces_projections() ? projection_bytes(config, spec.first_layer) : 0);
}

std::int64_t estimated_fused_bytes(const KvPlan& plan, const FusedLayer& layer,
                                   const ModelConfig& config) {
  return stored_bytes(fused_factors(plan, layer), {}) - projection_bytes(config, layer.layer);
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
