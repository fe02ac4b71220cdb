#include "runtime/gpu/gpu_compression.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <vector>

#include "runtime/compression/compression.h"
#include "runtime/gpu/gpu_encoding.h"
#include "runtime/policies/merge_selection.h"
#include "runtime/policies/principal_policy.h"

namespace kvc {
namespace {

std::vector<float> on_cpu(const at::Tensor& scores) {
  const at::Tensor own = scores.cpu().contiguous();
  const auto* first = own.const_data_ptr<float>();
  return {first, first + own.size(0)};
}

at::Tensor as_tensor(const std::vector<bool>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kBool);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<bool>());
  return tensor;
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

  void decide(bool prompt_ended, std::int64_t capacity) {
    std::vector<std::int64_t> counts;
    std::vector<EncodedTokens> encoded;
    for (int group = 0; group < num_groups(); ++group) {
      const GpuGroup& store = cache_.group(group);
      counts.push_back(
          store.decides() ? due_tokens(plan_, store.tokens(sequence_).pending, prompt_ended) : 0);
      encoded.emplace_back();
      if (counts.back() > 0 && plan_.policy.rule != MergeRule::kNone) {
        encoded.back() = encode_gpu_pending(model_, cache_, group, sequence_, counts.back());
      }
    }
    const std::vector<std::vector<bool>> merges = merges_of(counts, encoded);
    for (int group = 0; group < num_groups(); ++group) {
      const auto index = static_cast<std::size_t>(group);
      if (!cache_.group(group).decides()) {
        continue;
      }
      const at::Tensor merge = as_tensor(merges[index]);
      at::Tensor latents = encoded[index].latents;
      if (latents.defined()) {
        latents = latents.index_select(0, merge.nonzero().squeeze(1).to(latents.device()));
      }
      cache_.group(group).decide(sequence_, merge, latents, capacity);
    }
  }

 private:
  int num_groups() const { return static_cast<int>(plan_.groups.size()); }

  std::vector<std::vector<bool>> merges_of(const std::vector<std::int64_t>& counts,
                                           const std::vector<EncodedTokens>& encoded) const {
    MergeCandidates candidates{
        .num_tokens = num_tokens_, .num_candidates = counts, .tokens = {}, .scores = {}};
    if (has_basis(plan_, LatentBasis::kCalibrated)) {
      std::vector<std::vector<bool>> all;
      for (const std::int64_t count : counts) {
        all.emplace_back(static_cast<std::size_t>(count), true);
      }
      return all;
    }
    for (int group = 0; group < num_groups(); ++group) {
      const auto index = static_cast<std::size_t>(group);
      GroupTokens tokens = cache_.group(group).tokens(sequence_);
      if (!cache_.group(group).decides()) {
        tokens.unmerged = num_tokens_;
      }
      tokens.pending -= counts[index];
      tokens.unmerged += counts[index];
      candidates.tokens.push_back(tokens);
      candidates.scores.push_back(encoded[index].scores.defined() ? on_cpu(encoded[index].scores)
                                                                  : std::vector<float>());
    }
    return select_merges(plan_, candidates, cache_.kv_dtype(), cache_.page_tokens());
  }

  const GpuModel& model_;
  const KvPlan& plan_;
  GpuCache& cache_;
  std::size_t sequence_;
  std::int64_t num_tokens_;
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

void compress_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                         std::int64_t num_tokens) {
  const GpuGroup* group = deciding_group(cache);
  if (group == nullptr) {
    return;
  }
  const MergePolicy& policy = cache.plan().policy;
  const std::int64_t most =
      policy.sink_tokens + policy.window_tokens + generated_block(cache.plan());
  const std::int64_t left = num_tokens - due_tokens(cache.plan(), num_tokens, true);
  Decision(model, cache, sequence, num_tokens)
      .decide(true, std::min(most, left + cache.capacity(sequence) - num_tokens));
  cache.set_pending(sequence, group->tokens(sequence).pending, 0);
}

void compress_gpu_blocks(const GpuModel& model, GpuCache& cache,
                         const std::vector<std::int64_t>& num_tokens) {
  const c10::InferenceMode guard;
  const GpuGroup* group = deciding_group(cache);
  for (std::size_t sequence = 0; group != nullptr && sequence < num_tokens.size(); ++sequence) {
    if (due_tokens(cache.plan(), group->tokens(sequence).pending, false) > 0) {
      Decision(model, cache, sequence, num_tokens[sequence])
          .decide(false, group->reserved(sequence).pending);
      cache.set_pending(sequence, group->tokens(sequence).pending, 1);
    }
  }
}

}  // namespace kvc
