// The runtime: a model, converted or not, and sequences whose KV cache has the plan's size.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/kv_cache.h"

namespace kvc {

struct EngineOptions {
  std::string dtype;     // compute and weights: "float32", ...; empty: as stored
  std::string kv_dtype;  // what the KV cache stores; empty: the compute dtype
  std::int64_t page_tokens = 16;  // KV buffers grow by this many tokens
};

// One sequence: its token ids and its KV cache. Movable; releases its memory when destroyed.
class Sequence {
 public:
  std::int64_t num_tokens() const { return num_tokens_; }
  const KvCache& cache() const { return *cache_; }

 private:
  friend class Engine;
  std::int64_t num_tokens_ = 0;
  std::unique_ptr<KvCache> cache_;
};

class Engine {
 public:
  static Engine load(const std::filesystem::path& directory, const EngineOptions& options);

  const ModelConfig& config() const { return decoder_->config(); }
  const KvPlan& plan() const { return plan_; }
  KvDtype kv_dtype() const { return kv_dtype_; }
  std::int64_t weight_bytes() const;
  const KvAllocator& allocator() const { return *allocator_; }

  Sequence new_sequence();

  // Which rows of logits a call returns.
  enum class Rows { kLast, kAll };

  // A prompt (or a later turn's): attention over it is exact (policy.prefill), compression follows it.
  // ids[i] are the new tokens of sequences[i]. Logits float32: per sequence [rows, vocab_size].
  std::vector<at::Tensor> prefill(const std::vector<Sequence*>& sequences,
                                  const std::vector<std::vector<std::int64_t>>& ids, Rows rows);
  // Tokens as generation produces them: attention reads the compressed cache, and a block is compressed
  // when it leaves the window. Several ids of one sequence give the same logits and cache as one at a time.
  std::vector<at::Tensor> extend(const std::vector<Sequence*>& sequences,
                                 const std::vector<std::vector<std::int64_t>>& ids, Rows rows);

  // Sum over sequences of allocated KV bytes is plan_bytes() of their token counts, rounded to pages.
 private:
  Engine() = default;
  std::unique_ptr<Decoder> decoder_;
  KvPlan plan_;
  KvDtype kv_dtype_ = KvDtype::kFloat32;
  std::shared_ptr<KvAllocator> allocator_;
  std::shared_ptr<const LatentFactors> factors_;
};

}  // namespace kvc
