#include "runtime/gpu/gpu_compression.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/compression/compression.h"
#include "runtime/compression/merge_mask.h"
#include "runtime/policies/merge_selection.h"
#include "runtime/policies/principal_policy.h"

namespace kvc {
namespace {

std::vector<float> on_cpu(const at::Tensor& scores) {
  const at::Tensor own = scores.cpu().contiguous();
  const auto* first = own.const_data_ptr<float>();
  return {first, first + own.size(0)};
}

// One sequence's groups, of each of which so many tokens are due, 0 or more.
class Decision {
 public:
  Decision(const GpuModel& model, GpuCache& cache, std::size_t sequence, std::int64_t num_tokens)
      : model_(model),
        plan_(cache.plan()),
        cache_(cache),
        sequence_(sequence),
        num_tokens_(num_tokens) {}

  void decide(bool prompt_ended) {
    std::vector<std::int64_t> counts = due(prompt_ended);
    const bool none = std::all_of(counts.begin(), counts.end(), [](auto n) { return n == 0; });
    if (none && !prompt_ended) {
      return;
    }
    std::vector<EncodedTokens> encoded(counts.size());
    for (std::size_t index = 0; index < counts.size() && chooses(); ++index) {
      if (counts[index] > 0 && plan_.compression.rule != MergeRule::kNone) {
        encoded[index] =
            encode_gpu_pending(model_, cache_, static_cast<int>(index), sequence_, counts[index]);
      }
    }
    const std::vector<std::vector<bool>> merges = merges_of(counts, encoded);
    for (int group = 0; group < num_groups(); ++group) {
      const auto index = static_cast<std::size_t>(group);
      if (!cache_.group(group).decides()) {
        continue;
      }
      const at::Tensor merge = merge_mask(merges[index]);
      if (counts[index] > 0 && !chooses()) {
        encoded[index] = encode_principal(group, counts[index]);
      }
      at::Tensor latents = std::move(encoded[index].latents);
      if (latents.defined()) {
        latents = latents.index_select(0, merge.nonzero().squeeze(1).to(latents.device()));
      }
      GpuGroup& store = cache_.group(group);
      const GroupTokens tokens = store.tokens(sequence_);
      const std::int64_t capacity =
          pending_capacity(plan_, tokens.bases, tokens.pending - counts[index],
                           cache_.capacity(sequence_) - num_tokens_);
      store.decide(sequence_, merge, latents,
                   prompt_ended ? capacity : std::max(capacity, store.reserved(sequence_).pending));
    }
  }

 private:
  int num_groups() const { return static_cast<int>(plan_.groups.size()); }

  // For every group; of principal directions none where the tokens stay exact.
  std::vector<std::int64_t> due(bool prompt_ended) {
    std::vector<GroupTokens> tokens;
    for (int group = 0; group < num_groups(); ++group) {
      tokens.push_back(cache_.group(group).tokens(sequence_));
    }
    std::vector<std::int64_t> counts = due_tokens(plan_, tokens, prompt_ended);
    if (!chooses()) {
      step_ = principal_step(plan_, tokens, counts, cache_.exact_dtype());
      if (step_ == PrincipalStep::kKeepExact) {
        counts.assign(counts.size(), 0);
      }
    }
    return counts;
  }

  // True if the tokens that merge are chosen among all groups'.
  bool chooses() const { return has_basis(plan_, LatentBasis::kWeights); }
  EncodedTokens encode_principal(int group, std::int64_t count) {
    return step_ == PrincipalStep::kNewBasis
               ? encode_gpu_request(model_, cache_, group, sequence_, count)
               : encode_gpu_pending(model_, cache_, group, sequence_, count);
  }

  std::vector<std::vector<bool>> merges_of(const std::vector<std::int64_t>& counts,
                                           const std::vector<EncodedTokens>& encoded) const {
    if (!chooses()) {
      std::vector<std::vector<bool>> all;
      for (const std::int64_t count : counts) {
        all.emplace_back(static_cast<std::size_t>(count), true);
      }
      return all;
    }
    std::vector<GroupTokens> tokens;
    for (int group = 0; group < num_groups(); ++group) {
      tokens.push_back(cache_.group(group).tokens(sequence_));
      if (!cache_.group(group).decides()) {
        tokens.back().unmerged = num_tokens_;
      }
    }
    MergeCandidates candidates = merge_candidates(std::move(tokens), counts, num_tokens_);
    candidates.plain_dtype = cache_.kv_dtype();
    for (std::size_t group = 0; group < counts.size(); ++group) {
      if (encoded[group].scores.defined()) {
        candidates.scores[group] = on_cpu(encoded[group].scores);
      }
    }
    return select_merges(plan_, candidates, cache_.exact_dtype(), cache_.page_tokens());
  }

  const GpuModel& model_;
  const KvPlan& plan_;
  GpuCache& cache_;
  std::size_t sequence_;
  std::int64_t num_tokens_;
  PrincipalStep step_ = PrincipalStep::kProject;
};

// The first group that decides which tokens merge; the others hold as many pending tokens. Null: none does.
const GpuGroup* deciding_group(const GpuCache& cache) {
  for (int group = 0; group < static_cast<int>(cache.plan().groups.size()); ++group) {
    if (cache.group(group).decides()) {
      return &cache.group(group);
    }
  }
  return nullptr;
}

}  // namespace

std::int64_t pending_capacity(const KvPlan& plan, std::int64_t bases, std::int64_t pending,
                              std::int64_t more) {
  const bool decides =
      !plan.request || (plan.request->compress_generated &&
                        (bases == 0 || plan.request->later != LaterTokens::kExact));
  const CompressionSettings& settings = plan.compression;
  return decides ? std::max(pending, std::min(pending + more,
                                              settings.exact_tokens() + settings.block_tokens))
                 : pending + more;
}

void compress_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                         std::int64_t num_tokens) {
  const GpuGroup* group = deciding_group(cache);
  if (group == nullptr) {
    return;
  }
  Decision(model, cache, sequence, num_tokens).decide(true);
  cache.set_pending(sequence, group->tokens(sequence).pending, 0);
}

void compress_gpu_blocks(const GpuModel& model, GpuCache& cache,
                         const std::vector<std::int64_t>& num_tokens) {
  const c10::InferenceMode guard;
  const GpuGroup* group = deciding_group(cache);
  for (std::size_t sequence = 0; group != nullptr && sequence < num_tokens.size(); ++sequence) {
    if (due_tokens(cache.plan(), group->tokens(sequence).pending, false) > 0) {
      Decision(model, cache, sequence, num_tokens[sequence]).decide(false);
      cache.set_pending(sequence, group->tokens(sequence).pending, 1);
    }
  }
}

}  // namespace kvc
