#include "runtime/memory/process_forecast.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "model/rope.h"

namespace kvc {
namespace {

// Most numbers per token that one layer's activations take.
std::int64_t activation_width(const ModelConfig& config) {
  const std::int64_t projected =
      config.q_dim() + (config.mla ? config.mla->cache_width() : 2 * config.kv_dim());
  const std::int64_t attention =
      config.hidden_size + projected + config.q_dim() + config.attended_dim();
  std::int64_t units = config.intermediate_size;
  std::int64_t routed = 0;  // outputs of a token's experts
  if (config.moe) {
    const std::int64_t chosen = config.moe->experts_per_token;
    units = std::max(units, chosen * config.moe->expert_size + config.moe->shared_size);
    routed = chosen * config.hidden_size;
  }
  return std::max(attention, 2 * config.hidden_size + routed + 3 * units);
}

// Moments of a group's keys and values, and one of them while its eigenvectors are computed: five matrices.
std::int64_t request_basis_bytes(const KvPlan& plan) {
  constexpr std::int64_t kMatrices = 5;
  std::int64_t most = 0;
  if (has_basis(plan, LatentBasis::kRequest)) {
    for (const LatentGroup& group : plan.groups) {
      const std::int64_t width =
          group.num_layers * (group.split_kv ? plan.kv_dim() : 2 * plan.kv_dim());
      most = std::max(most, kMatrices * width * width * static_cast<std::int64_t>(sizeof(double)));
    }
  }
  return most;
}

bool stores_keys_before_rope(const KvPlan& plan, KvDtype kv_dtype) {
  return is_integer(kv_dtype) || !plan.groups.empty() ||
         std::any_of(plan.coded.begin(), plan.coded.end(),
                     [](const CodedBlock& block) { return block.has_keys() && !block.rotated; });
}

}  // namespace

std::int64_t reading_bytes(const ModelConfig& config, at::ScalarType compute,
                           const PromptSizes& prompts) {
  constexpr std::int64_t kSpareShare = 4;
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(compute));
  std::int64_t numbers =
      prompts.all * config.hidden_size + prompts.piece * activation_width(config);
  if (prompts.longest > prompts.piece) {
    numbers += prompts.longest * 2 * config.kv_dim();
  }
  return (numbers + numbers / kSpareShare) * bytes;
}

std::int64_t compression_bytes(const KvPlan& plan, const TokenPolicy& policy,
                               const PromptSizes& prompts) {
  // Measured with two threads.
  constexpr std::int64_t kProductBuffers = std::int64_t{5} << 20;
  constexpr std::int64_t kMergeBuffers = std::int64_t{11} << 20;
  if (policy.is_full() && plan.num_layers_from(KvSource::kPlain) == plan.num_layers()) {
    return 0;
  }
  const std::int64_t merged =  // keys in float32, which score and merge
      policy.residual_slots > 0
          ? std::max(kMergeBuffers,
                     prompts.longest * plan.kv_dim() * static_cast<std::int64_t>(sizeof(float)))
          : 0;
  const std::int64_t rebuilt =  // of codes, and exact ones beside them
      codes_prompts(plan) ? std::min(prompts.longest, prompts.piece) * 2 * 2 * plan.kv_dim() *
                                static_cast<std::int64_t>(sizeof(float))
                          : 0;
  return kProductBuffers + merged + rebuilt + request_basis_bytes(plan);
}

std::int64_t angle_bytes(const ModelConfig& config, const KvPlan& plan, KvDtype kv_dtype,
                         std::int64_t positions) {
  if (!stores_keys_before_rope(plan, kv_dtype)) {
    return 0;
  }
  const std::int64_t width = config.rotary_width() * static_cast<std::int64_t>(config.ropes.size());
  return RopeTable::positions_of_table(positions) * width *
         static_cast<std::int64_t>(sizeof(float));
}

std::int64_t program_bytes() {
  // Measured with two threads: a run touches 1.15 to 1.35 times as many pages of files, whose number depends on how the
  // system holds these files: 61 to 87 MiB of the same ones.
  constexpr std::int64_t kPercentTouchedLater = 24;
  constexpr std::int64_t kKeptByProducts = std::int64_t{4} << 20;
  std::ifstream file("/proc/self/statm");
  std::int64_t mapped = 0, resident = 0, of_files = 0;  // pages
  if (!(file >> mapped >> resident >> of_files)) {
    return 0;
  }
  const std::int64_t touched_later = of_files * kPercentTouchedLater / 100;
  return (resident + touched_later) * ::sysconf(_SC_PAGESIZE) + kKeptByProducts;
}

}  // namespace kvc
