// A model on a GPU, and generation with it: prompts are read through LibTorch, every further token by a step whose
// launches, sampling included, are queued without waiting for the CPU.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/engine.h"
#include "runtime/generate.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/gpu_reuse.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/gpu/step_state.h"
#include "runtime/turn_sequence.h"

namespace kvc {

class GpuEngine {
 public:
  // A plain, folded or factored HuggingFace directory. Error naming what the GPU runtime does not support, or how
  // much memory the weights lack.
  static GpuEngine load(const std::filesystem::path& directory, const EngineOptions& options,
                        std::unique_ptr<StepExecutor> executor);

  const ModelConfig& config() const { return model_->config; }
  const KvPlan& plan() const { return plan_; }
  std::int64_t page_tokens() const { return page_tokens_; }
  KvDtype kv_dtype() const { return kv_dtype_; }
  const TokenPolicy& policy() const { return policy_; }
  std::int64_t weight_bytes() const { return model_->bytes(); }
  std::int64_t kv_peak_bytes() const { return kv_peak_bytes_; }  // of the last generate()

  // As generate() of an Engine (runtime/generate.h); with beams one prompt after the other. Allocates all sequences'
  // memory at once; if there is too little, Error with the plan's bytes and the most new tokens that fit.
  GenerateResult generate(const Engine::Ids& prompts, const GenerateOptions& options,
                          const TokenVisitor& visit = {}) const;

  // A text that grows turn by turn; the engine must outlive it. Allocates memory before each turn, for the prompt and
  // --max-new-tokens; if there is too little, Error as above. Error naming what conversations do not support on a GPU.
  std::unique_ptr<TurnSequence> turns() const;

 private:
  friend class GpuTurns;
  GpuEngine() = default;
  GenerateResult search_beams(const Engine::Ids& prompts, const GenerateOptions& options) const;
  GpuCache new_cache(const StepSequences& sequences, const GenerateOptions& options) const;
  // Bytes of step and cache for sequences with `new_tokens` new tokens.
  struct Need {
    std::int64_t cache = 0, work = 0;
  };
  Need need_of(const std::vector<std::int64_t>& lengths, std::int64_t new_tokens) const;
  // Error if memory is too small.
  void check_memory(const StepSequences& sequences, const GenerateOptions& options) const;
  // The same for a further turn of a text in `cache`.
  void check_turn(const GpuCache& cache, const StepSequences& sequences,
                  const GenerateOptions& options) const;
  // Bytes required for that many new tokens.
  using NeedOf = std::function<Need(std::int64_t)>;
  // `held`: bytes that are already allocated. longest: the longest sequence without new tokens.
  void check_memory(const NeedOf& need_of, std::int64_t held, std::size_t num_sequences,
                    std::int64_t longest, const GenerateOptions& options) const;
  std::int64_t work_bytes(const std::vector<std::int64_t>& lengths, std::int64_t new_tokens,
                          std::int64_t longest_prompt) const;

  std::unique_ptr<StepExecutor> executor_;
  std::unique_ptr<GpuModel> model_;
  std::unique_ptr<PromptReuse> reuse_;  // null: none
  KvPlan plan_;
  TokenPolicy policy_;
  KvDtype kv_dtype_ = KvDtype::kBFloat16;
  std::int64_t page_tokens_ = 0, prefill_chunk_ = 0;
  mutable std::int64_t kv_peak_bytes_ = 0;
  std::optional<std::int64_t> memory_bytes_;  // of caches, at most
};

}  // namespace kvc
