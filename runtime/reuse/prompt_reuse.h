// Reuse of similar prompts' caches for one engine: looks donors up, decides, and keeps new ones.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/attention/prompt_reader.h"
#include "runtime/reuse/donor_store.h"
#include "runtime/reuse/reuse_options.h"
#include "runtime/reuse/reuse_reader.h"
#include "runtime/reuse/reuse_report.h"

namespace kvc {

// Where there are donors: Error naming what the model or its plan lacks (RoPE whose angles are those of the position alone,
// plain layers with a key and a value for every head), or what does not go beside reuse. kv_dtype: of the cache.
void check_reuse(const ReuseOptions& options, const TokenPolicy& policy, KvDtype kv_dtype,
                 const ModelConfig& config, const KvPlan& plan);
// What binds entries: everything that keys, values and token ids depend on, the checkpoint's config.json with
// its RoPE included. `dtype`: of stored keys and values.
DonorFormat donor_format(const Checkpoint& checkpoint, const ModelConfig& config,
                         at::ScalarType compute, at::ScalarType dtype,
                         const std::string& weight_dtype);

class PromptReuse {
 public:
  // What `model` refers to must outlive this. Error where the store cannot be opened.
  PromptReuse(ReuseModel model, DonorFormat format, ReuseOptions options);
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
  // True if a prompt that is read with a donor keeps only some of its tokens.
  bool drops_tokens() const { return options_.retention != Retention::kAll; }
  // Reads the prompt, of which `store` is given what each layer keeps. Hidden state of the last token [1, hidden_size].
  // Throws Interrupted.
  at::Tensor read(const std::vector<std::int64_t>& ids, Found& found, const StoreTokens& store,
                  const Stopped& stopped, PartTimes* times) const;
  // One layer's exact keys, post-RoPE, and values of all tokens, [num_tokens, num_kv_heads, head_dim]; on any device.
  struct Rows {
    at::Tensor key, value;
  };
  // Stores a prompt that was read as a whole. Writing goes on behind the caller's back.
  void keep(const std::vector<std::int64_t>& ids, const std::function<Rows(int layer)>& rows_of);

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

  ReuseModel model_;
  DonorFormat format_;
  ReuseOptions options_;
  DonorStore store_;
  std::future<void> writing_;
};

}  // namespace kvc
