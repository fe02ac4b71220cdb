// The runtime: a model, converted or not, and sequences whose KV cache has the plan's size.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/cached_attention.h"
#include "runtime/kv_cache.h"
#include "runtime/latent_factors.h"

namespace kvc {

struct EngineOptions {
  std::string dtype;              // compute and weights: "float32", ...; empty: as stored
  std::string kv_dtype;           // what the KV cache stores; empty: the compute dtype
  std::int64_t page_tokens = 16;  // KV buffers grow by this many tokens
};

// One sequence and its KV cache. Movable; releases its memory when destroyed.
class Sequence {
 public:
  std::int64_t num_tokens() const { return cache_->num_tokens(); }
  const KvCache& cache() const { return *cache_; }

 private:
  friend class Engine;
  explicit Sequence(std::unique_ptr<KvCache> cache) : cache_(std::move(cache)) {}
  std::unique_ptr<KvCache> cache_;
};

class Engine {
 public:
  // A plain, folded or factored HuggingFace directory.
  static Engine load(const std::filesystem::path& directory, const EngineOptions& options);

  const ModelConfig& config() const { return decoder_->config(); }
  const KvPlan& plan() const { return *plan_; }
  KvDtype kv_dtype() const { return kv_dtype_; }
  std::int64_t weight_bytes() const;  // factors included
  const KvAllocator& allocator() const { return *allocator_; }

  Sequence new_sequence() const;

  // Which rows of logits a call returns.
  enum class Rows { kLast, kAll };
  using Ids = std::vector<std::vector<std::int64_t>>;

  // A prompt (or a later turn's): attention over it is exact (policy.prefill), compression follows
  // it. ids[i] are the new tokens of sequences[i], at least one. Logits float32: per sequence
  // [rows, vocab_size].
  std::vector<at::Tensor> prefill(const std::vector<Sequence*>& sequences, const Ids& ids,
                                  Rows rows) const;
  // Tokens as generation produces them: attention reads the compressed cache, and a block is
  // compressed when it leaves the window. Several ids of one sequence give the same logits and
  // cache as one at a time.
  std::vector<at::Tensor> extend(const std::vector<Sequence*>& sequences, const Ids& ids,
                                 Rows rows) const;

 private:
  struct PendingIds;
  Engine() = default;
  void check_call(const std::vector<Sequence*>& sequences, const Ids& ids) const;
  std::vector<at::Tensor> forward(const std::vector<KvCache*>& caches, const Ids& ids, Rows rows,
                                  Pass pass) const;
  bool extend_round(std::vector<PendingIds>& pending, Rows rows) const;
  KvCache new_cache() const;
  std::int64_t tokens_until_longrope(const KvCache& cache) const;
  at::Tensor read_again(KvCache& cache, const std::vector<std::int64_t>& ids, Rows rows) const;
  std::vector<at::Tensor> read(const std::vector<KvCache*>& caches, const Ids& ids,
                               Rows rows) const;
  void compress_oldest(std::int64_t count, KvCache& cache) const;

  std::unique_ptr<Decoder> decoder_;
  std::shared_ptr<const KvPlan> plan_;
  KvDtype kv_dtype_ = KvDtype::kFloat32;
  std::shared_ptr<KvAllocator> allocator_;
  LatentFactors factors_;
};

}  // namespace kvc
