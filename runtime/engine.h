// The runtime: a model, converted or not, and sequences whose KV cache has the plan's size.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/kv_plan_parts.h"
#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/attention/cached_attention.h"
#include "runtime/attention/part_times.h"
#include "runtime/attention/prompt_reader.h"
#include "runtime/attention/rebuild_counts.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/compression/pending_merges.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/reuse/reuse_options.h"
#include "runtime/reuse/reuse_report.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

class PromptReuse;

struct EngineOptions {
  std::string dtype;     // compute and weights: "float32", ...; empty: as stored
  std::string kv_dtype;  // what the KV cache stores; empty: the compute dtype
  std::optional<std::int64_t>
      memory_bytes{};  // of KV caches: a limit (runtime/memory/memory_budget.h)
  std::optional<std::int64_t>
      page_tokens{};  // tokens per page of KV stores; 16, or 32 for integers
  // A prompt's tokens whose activations are in memory at a time; 0: all. Results differ by rounding.
  std::int64_t prefill_chunk = 2048;
  bool time_parts = false;                             // measure time per part
  std::string weight_dtype{};                          // "int8": quantises weights; empty: as dtype
  TokenPolicy policy{};                                // tokens that caches keep
  ReuseOptions reuse{};                                // reuse of similar prompts' caches
  std::optional<SelectiveReconstruction> selective{};  // of latents, in `extend`
};

// Dtypes that an engine computes in and stores caches in.
struct CacheTypes {
  at::ScalarType compute = at::kFloat;
  KvDtype kv = KvDtype::kFloat32;
  std::int64_t page_tokens = 0;
};
// Error for a dtype that does not fit the model's heads or the pages.
CacheTypes cache_types(const Checkpoint& checkpoint, const ModelConfig& config,
                       const EngineOptions& options);

// One sequence and its KV cache. Movable; returns its memory when destroyed.
class Sequence {
 public:
  // A copy of the sequence. The two share memory until one of them writes.
  Sequence fork() const {
    Sequence other(std::make_unique<KvCache>(*cache_));
    other.reuse_ = reuse_;
    return other;
  }

  std::int64_t num_tokens() const { return cache_->num_tokens(); }
  const KvCache& cache() const { return *cache_; }
  // Report on its first prompt, if the engine reuses prompts.
  const std::optional<ReuseReport>& reuse() const { return reuse_; }

 private:
  friend class Engine;
  explicit Sequence(std::unique_ptr<KvCache> cache) : cache_(std::move(cache)) {}
  std::unique_ptr<KvCache> cache_;
  std::optional<ReuseReport> reuse_;
};

class Engine {
 public:
  // A plain, folded or factored HuggingFace directory.
  static Engine load(const std::filesystem::path& directory, const EngineOptions& options);
  // `original`, whose cache keeps one part of the layers as `converted` does (with_part_only). Shares the original's weights
  // and the conversion's factors; keeps the conversion's token policy and dtype of the cache.
  static Engine with_part(const Engine& original, const Engine& converted, const LayerRange& part);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  const ModelConfig& config() const { return decoder_->config(); }
  const KvPlan& plan() const { return *plan_; }
  const TokenPolicy& policy() const { return *policy_; }
  KvDtype kv_dtype() const { return kv_dtype_; }
  std::int64_t weight_bytes() const;  // factors included
  const KvPool& pool() const { return *pool_; }
  PartTimes* part_times() const { return part_times_.get(); }  // null without time_parts
  RebuildCounts rebuild_counts() const { return *rebuilt_; }   // under EngineOptions::selective

  Sequence new_sequence() const;

  // Rows of logits that a call returns.
  enum class Rows { kLast, kAll };
  using Ids = std::vector<std::vector<std::int64_t>>;

  // A prompt (or a later turn's): attention over it is exact (policy.prefill), and compression follows. Where
  // codes_prompts, it reads what extend() reads, layer by layer if that is possible.
  // ids[i] are the new tokens of sequences[i], at least one. Logits float32: per sequence [rows,
  // vocab_size]. `stopped` is called between pieces of prefill_chunk tokens and between layers; if true
  // the call throws Interrupted. After any exception, a call that began to read leaves the sequences
  // empty. With EngineOptions::reuse and kLast, an empty sequence's prompt is read with the cache of a
  // similar prompt if there is one.
  std::vector<at::Tensor> prefill(const std::vector<Sequence*>& sequences, const Ids& ids,
                                  Rows rows, const Stopped& stopped = {}) const;
  // Generated tokens: attention reads the compressed cache, and a block is compressed when it
  // leaves the window. Several ids of one sequence give the same logits and cache as one at a time.
  // `stopped`: as above, called between blocks; the sequences then contain the tokens read so far.
  std::vector<at::Tensor> extend(const std::vector<Sequence*>& sequences, const Ids& ids, Rows rows,
                                 const Stopped& stopped = {}) const;
  // extend() for a long text. Layer by layer, in fewer and larger steps, where nothing is compressed meanwhile or coded layers
  // allow it (reads_codes_by_layer); otherwise latents are rebuilt once, beside the cache until the call ends. After an exception
  // the sequences are empty, as after prefill()'s.
  std::vector<at::Tensor> extend_text(const std::vector<Sequence*>& sequences, const Ids& ids,
                                      Rows rows, const Stopped& stopped = {}) const;
  // Frees what a memory budget rebuilt beside the sequence's latents: room for others while it waits.
  void free_rebuilt(Sequence& sequence) const;
  // True if rewind() can be called: tokens are stored as they are read, one by one, and independent of those behind them.
  bool can_rewind() const;
  // Drops all tokens but the first `num_tokens`. What follows is read as if no other had been there, up to rounding.
  void rewind(Sequence& sequence, std::int64_t num_tokens) const;
  // True if prefill() of a whole text gives the logits that extend() gives after any part of it, up to rounding: prompts are read
  // through codes, or read what the cache keeps (also latents that replace projections, and fused layers), unrounded.
  bool continues_as_prompts() const;
  // True if a new sequence's prompt reads the keys and values of the checkpoint's own projections, unrounded, whatever the cache
  // keeps of them afterwards.
  bool reads_prompts_exactly() const;

 private:
  struct PendingIds;
  Engine();
  static std::vector<std::int64_t> lengths_of(const Ids& ids);
  static std::vector<KvCache*> caches_of(const std::vector<Sequence*>& sequences);
  void check_call(const std::vector<Sequence*>& sequences, const Ids& ids) const;
  std::int64_t layer_work(const std::vector<KvCache*>& caches,
                          const std::vector<std::int64_t>& lengths) const;
  std::vector<at::Tensor> forward(const std::vector<KvCache*>& caches, const Ids& ids,
                                  Rows rows) const;
  std::vector<at::Tensor> extend_all(const std::vector<Sequence*>& sequences, const Ids& ids,
                                     Rows rows, const Stopped& stopped,
                                     const MemoryBudget* budget) const;
  bool extend_round(std::vector<PendingIds>& pending, Rows rows, const MemoryBudget* budget) const;
  const MemoryBudget* budget() const { return budget_ ? &*budget_ : nullptr; }
  StoreOptions store_options() const;
  KvCache new_cache() const;
  std::int64_t tokens_until_longrope(const KvCache& cache) const;
  static std::vector<std::int64_t> whole_text(const KvCache& cache,
                                              const std::vector<std::int64_t>& ids);
  void make_room_for_prompts(std::vector<KvCache*> caches, const std::vector<std::int64_t>& lengths,
                             const std::vector<KvCache*>& outgrown) const;
  void start_reuse(const Checkpoint& checkpoint, const CacheTypes& types,
                   const EngineOptions& options);
  std::vector<at::Tensor> read_block_by_block(const std::vector<Sequence*>& sequences,
                                              const Ids& ids, Rows rows,
                                              const Stopped& stopped) const;
  bool has_cache_of_compute_type() const;
  // Whatever its number type: of every token, for good.
  bool keeps_what_prompts_read() const;
  bool continues_by_layer() const;
  void check_coded_length(std::int64_t num_tokens) const;
  at::Tensor reuse(Sequence& sequence, const std::vector<std::int64_t>& ids,
                   const Stopped& stopped) const;
  std::vector<at::Tensor> read(const std::vector<KvCache*>& caches, const Ids& ids, Rows rows,
                               const Stopped& stopped, Pass pass = Pass::kPrefill,
                               const std::vector<KvCache*>& outgrown = {}) const;
  void keep_as_donor(const std::vector<std::int64_t>& ids, KvCache& cache) const;
  std::int64_t most_extended(const KvCache& cache) const;
  std::vector<PromptPiece> pieces_of_prompts(const std::vector<KvCache*>& caches,
                                             const Ids& ids) const;
  std::vector<at::Tensor> prompt_logits(const std::vector<PromptPiece>& pieces,
                                        const std::vector<at::Tensor>& hidden_states,
                                        const Ids& ids, Rows rows) const;
  CompressionContext compression() const;
  void compress_block(KvCache& cache) const;

  std::shared_ptr<Decoder> decoder_;
  std::shared_ptr<const KvPlan> plan_;
  std::shared_ptr<const TokenPolicy> policy_;
  KvDtype kv_dtype_ = KvDtype::kFloat32;
  std::shared_ptr<KvPool> pool_;
  KvFactors factors_;
  std::int64_t prefill_chunk_ = 0;
  std::unique_ptr<PartTimes> part_times_;
  std::unique_ptr<RebuildCounts> rebuilt_ = std::make_unique<RebuildCounts>();
  std::optional<MemoryBudget> budget_;
  std::unique_ptr<PromptReuse> reuse_;  // null: none
};

// Error for an id that no embedding has.
void check_token_ids(const Engine::Ids& ids, std::int64_t vocab_size);

}  // namespace kvc
