#include "runtime/memory/process_forecast.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "model/bfloat16_attention.h"
#include "model/rope.h"
#include "model/row_products.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

std::int64_t size_of(at::ScalarType type) {
  return static_cast<std::int64_t>(c10::elementSize(type));
}

// Activations of one layer's attention for a piece of a prompt, and what is copied for attention of another type.
std::int64_t attention_bytes(const ModelConfig& config, const ReadingTypes& types,
                             const PromptSizes& prompts) {
  const std::int64_t projected =
      config.q_dim() + (config.mla ? config.mla->cache_width() : 2 * config.kv_dim());
  const std::int64_t numbers =
      config.hidden_size + projected + config.q_dim() + config.attended_dim();
  std::int64_t copied = 0;
  if (types.attention != types.compute) {
    copied =
        config.q_dim() + config.attended_dim() + (prompts.in_pieces() ? 0 : 2 * config.kv_dim());
  }
  if (types.attention == at::kFloat && prompts.in_pieces()) {
    copied += config.attended_dim();  // over earlier pieces, and over this one
  }
  return prompts.piece * (numbers * size_of(types.compute) + copied * size_of(types.attention));
}

// Those of its feed-forward block.
std::int64_t feed_forward_bytes(const ModelConfig& config, const ReadingTypes& types,
                                const PromptSizes& prompts) {
  std::int64_t units = config.intermediate_size;
  std::int64_t routed = 0;  // outputs of a token's experts
  if (config.moe) {
    const std::int64_t chosen = config.moe->experts_per_token;
    units = std::max(units, chosen * config.moe->expert_size + config.moe->shared_size);
    routed = chosen * config.hidden_size;
  }
  const std::int64_t numbers = 2 * config.hidden_size + routed + 3 * units;
  const std::int64_t widened =
      types.product == types.compute
          ? 0
          : std::max(widened_product_bytes(prompts.piece, config.hidden_size, units),
                     widened_product_bytes(prompts.piece, units, config.hidden_size));
  return prompts.piece * numbers * size_of(types.compute) + widened;
}

// What attention's matrix products keep in float32, per thread: measured for pieces of 512 and 2048 tokens.
std::int64_t attention_buffers(const ReadingTypes& types, const PromptSizes& prompts) {
  constexpr std::int64_t kFewTokens = 64;  // whose products need none
  constexpr std::int64_t kOfThread = std::int64_t{9} << 19;
  return types.attention == at::kFloat && prompts.longest > kFewTokens
             ? types.num_threads * kOfThread
             : 0;
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

// Products of queries and keys that a token policy has at once, which of them are hidden, and keys in float32: of one KV
// head (attention_scores). Merging takes the keys of all.
std::int64_t policy_bytes(const ModelConfig& config, const TokenPolicy& policy,
                          const PromptSizes& prompts) {
  constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t rows = prompts.longest;
  const std::int64_t queries =
      std::min(scoring_queries(policy, rows), queries_at_once(at::kCPU, config.num_heads * rows));
  const std::int64_t of_query = config.num_heads / config.num_kv_heads * kFloatBytes + 1;
  const std::int64_t scored =
      queries > 0 ? rows * (queries * of_query + config.head_dim * kFloatBytes) : 0;
  const std::int64_t merged = policy.residual_slots > 0 ? rows * config.kv_dim() * kFloatBytes : 0;
  return std::max(scored, merged);
}

bool stores_keys_before_rope(const KvPlan& plan, KvDtype kv_dtype) {
  return is_integer(kv_dtype) || !plan.groups.empty() ||
         std::any_of(plan.coded.begin(), plan.coded.end(),
                     [](const CodedBlock& block) { return block.has_keys() && !block.rotated; });
}

}  // namespace

ReadingTypes reading_types(const ModelConfig& config, at::ScalarType compute) {
  const bool attends_in_bfloat16 = can_attend_in_bfloat16(at::empty({1, config.head_dim}, compute),
                                                          {.scale = config.attention_scale});
  return {.compute = compute,
          .attention = attends_in_bfloat16 ? at::kBFloat16 : at::kFloat,
          .product = has_fast_products(compute) ? compute : at::kFloat,
          .num_threads = at::get_num_threads()};
}

std::int64_t reading_bytes(const ModelConfig& config, const ReadingTypes& types,
                           const PromptSizes& prompts) {
  constexpr std::int64_t kSpareShare = 4;
  std::int64_t bytes =
      prompts.all * config.hidden_size * size_of(types.compute) +
      std::max(attention_bytes(config, types, prompts), feed_forward_bytes(config, types, prompts));
  if (prompts.in_pieces()) {
    bytes += prompts.longest * 2 * config.kv_dim() * size_of(types.attention);
  }
  return bytes + bytes / kSpareShare + attention_buffers(types, prompts);
}

std::int64_t compression_bytes(const ModelConfig& config, const KvPlan& plan,
                               const TokenPolicy& policy, const PromptSizes& prompts) {
  constexpr std::int64_t kProductBuffers = std::int64_t{5} << 20;  // measured with two threads
  if (policy.is_full() && plan.num_layers_from(KvSource::kPlain) == plan.num_layers()) {
    return 0;
  }
  const std::int64_t rebuilt =  // of codes, and exact ones beside them
      codes_prompts(plan) ? std::min(prompts.longest, prompts.piece) * 2 * 2 * plan.kv_dim() *
                                static_cast<std::int64_t>(sizeof(float))
                          : 0;
  return kProductBuffers + policy_bytes(config, policy, prompts) + rebuilt +
         request_basis_bytes(plan);
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
