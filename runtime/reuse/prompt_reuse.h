// Reuse of similar prompts' caches for one engine: looks donors up, decides, and keeps new ones.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/prompt_reader.h"
#include "runtime/reuse/donor_store.h"
#include "runtime/reuse/reuse_options.h"
#include "runtime/reuse/reuse_report.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Error naming what the model or its plan lacks: RoPE whose angles are those of the position alone, plain
// layers with a key and a value for every head.
void check_reuse(const ModelConfig& config, const KvPlan& plan);
// What binds entries: everything that keys, values and token ids depend on, the checkpoint's config.json with
// its RoPE included. `dtype`: of stored keys and values.
DonorFormat donor_format(const Checkpoint& checkpoint, const ModelConfig& config,
                         at::ScalarType compute, at::ScalarType dtype,
                         const std::string& weight_dtype);

class PromptReuse {
 public:
  // `decoder` must outlive this. Error where the store cannot be opened.
  PromptReuse(const Decoder& decoder, DonorFormat format, ReuseOptions options);
  ~PromptReuse();  // waits until what was given to `keep` is stored
  PromptReuse(const PromptReuse&) = delete;
  PromptReuse& operator=(const PromptReuse&) = delete;

  struct Found {
    ReuseReport report;
    std::optional<Donor> donor;  // absent: the prompt is to be read as a whole
    at::Tensor match;            // [num_tokens] int64
  };
  // The most similar donor of a prompt that opens a text.
  Found find(const std::vector<std::int64_t>& ids);
  // Does a prompt that is read with a donor keep some of its tokens only?
  bool drops_tokens() const { return options_.retention != Retention::kAll; }
  // Reads the prompt into the empty `cache`. Hidden state of the last token [1, hidden_size]. Throws Interrupted.
  at::Tensor read(const std::vector<std::int64_t>& ids, Found& found, KvCache& cache,
                  const Stopped& stopped, PartTimes* times) const;
  // Stores a prompt that was read as a whole, from a cache that holds exact keys and values of all of it and
  // nothing else. Writing goes on behind the caller's back.
  void keep(const std::vector<std::int64_t>& ids, const KvCache& cache);

 private:
  struct Matched {
    std::string name;
    double similarity = 0;
    at::Tensor index;  // [num_tokens] int64
  };
  std::vector<Matched> match(const std::vector<std::int64_t>& ids);
  bool is_long_enough(const std::vector<std::int64_t>& ids) const;
  at::Tensor embeddings_of(const std::vector<std::int64_t>& ids) const;
  void wait();

  const Decoder& decoder_;
  DonorFormat format_;
  ReuseOptions options_;
  DonorStore store_;
  std::future<void> writing_;
};

}  // namespace kvc
