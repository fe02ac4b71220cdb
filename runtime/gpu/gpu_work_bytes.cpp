#include <algorithm>

#include "core/kv_plan_bytes.h"
#include "runtime/gpu/coded_prompt_attention.h"
#include "runtime/gpu/coded_ranks.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/segments.h"
#include "runtime/store/coded_store.h"
#include "runtime/store/row_store.h"

namespace kvc {

std::int64_t group_work_bytes(const KvPlan& plan, const ModelConfig& config,
                              std::int64_t num_sequences, std::int64_t longest_prompt,
                              std::int64_t new_tokens, int multiprocessors) {
  constexpr std::int64_t kGramBytes =
      48;  // an element: sums, both triangles, directions, the solver's work
  std::int64_t rank = 0, stacked = 0, gram = 0, sums = 0, blocks = 1, coding = 0;
  for (const LatentGroup& group : plan.groups) {
    rank = std::max(rank, group.rank);
    sums = std::max(sums, whole_ranks(group.rank));
    stacked = std::max(stacked, group.num_layers * 2 * plan.kv_dim());
    const std::int64_t width = group.num_layers * (group.split_kv ? 1 : 2) * plan.kv_dim();
    gram = std::max(gram, group.basis == LatentBasis::kRequest ? width * width * kGramBytes : 0);
  }
  for (const CodedLayers& layers : coded_layers(plan)) {
    std::int64_t width = 0, of_values = 0;
    for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
      const CodedBlock& block = plan.coded[static_cast<std::size_t>(i)];
      width += coded_width(block.num_coefficients());
      if (block.has_values()) {
        ++of_values;
        sums = std::max(sums, whole_ranks(coded_width(block.num_coefficients())));
      }
    }
    rank = std::max(rank, width);
    blocks = std::max(blocks, of_values);
    // Coefficients in float32, and copies of rows that do not lie together.
    coding = std::max(coding, std::min(kCodingTokens, longest_prompt) *
                                  (4 * width + 2 * layers.num_layers * 2 * plan.kv_dim()));
  }
  if (rank == 0) {
    return 0;
  }
  const std::int64_t encoding =
      std::max(coding, 4 * std::min(kChunkTokens, longest_prompt) * (3 * stacked + rank));
  const std::int64_t tokens = longest_prompt + new_tokens;
  // Softmaxes of tiles, 2 bytes a token and query head, between two launches; sums of latents in parts and
  // whole, of exact rows in parts.
  const std::int64_t parts = most_rank_parts(multiprocessors, num_sequences, blocks, sums, tokens),
                     exact = attention_parts(multiprocessors,
                                             static_cast<int>(num_sequences * config.num_kv_heads),
                                             static_cast<int>(tokens));
  const std::int64_t attention = num_sequences * config.num_heads *
                                 (2 * tokens + tokens / 4 + 4 * (parts + 2) * (sums + 2) +
                                  4 * (2 * exact + 2) * (config.head_dim + 2));
  // Positions of groups that merge as a whole.
  const std::int64_t places =
      has_basis(plan, LatentBasis::kWeights) && plan.compression.granularity == Granularity::kGroup
          ? num_sequences * static_cast<std::int64_t>(plan.groups.size()) * 2 * 4 * tokens
          : 0;
  return encoding + gram + attention + places;
}

std::int64_t coded_prompt_bytes(const KvPlan& plan, const ModelConfig& config,
                                std::int64_t num_sequences, std::int64_t longest_prompt,
                                std::int64_t piece) {
  if (!codes_prompts(plan)) {
    return 0;
  }
  constexpr std::int64_t kElementBytes = 2, kFloatBytes = 4;
  constexpr std::int64_t kCopies =
      3;  // rows in pieces, together, and behind sinks; scores, capped, and their weights
  constexpr std::int64_t kMasks = 2;  // layers with a window have another than those without
  const std::int64_t token = 2 * kElementBytes * plan.kv_dim();
  const std::int64_t masked =
                         CodedPromptAttention::most_masked_tokens(plan.compression.window_tokens),
                     together = std::max(CodedPromptAttention::kTokensAtOnce, masked);
  const std::int64_t scores = kFloatBytes * config.num_heads *
                              CodedPromptAttention::kQueriesPerBlock *
                              std::min(longest_prompt, together);
  const std::int64_t first =
      codes_first_token(plan) ? num_sequences * plan.num_layers_from(KvSource::kCoded) * token : 0;
  return kCopies * (token * longest_prompt + scores) + kMasks * piece * masked + first;
}

}  // namespace kvc
