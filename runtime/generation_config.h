// What a checkpoint's authors say of generation: generation_config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "model/config.h"
#include "runtime/sampler.h"

namespace kvc {

// eos_token_id of generation_config.json, or else of config.json.
std::vector<std::int64_t> stop_ids(const std::filesystem::path& model, const ModelConfig& config);
// temperature, top_k, top_p, min_p and repetition_penalty of generation_config.json; what it leaves open
// is what transformers takes when it samples: 1, 50, 1, 0 and 1. Error naming the file for impossible
// values.
SamplingOptions authors_sampling(const std::filesystem::path& model);

// Sampling as it is asked for: `sample` takes what the checkpoint's authors say, otherwise nothing is
// filtered; each number replaces one. Greedy where neither `sample` nor a temperature is given.
struct SamplingRequest {
  bool sample = false;
  std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{};
  std::optional<std::int64_t> top_k{};
};
// Throws UsageError for what check (runtime/sampler.h) refuses.
SamplingOptions resolve(const SamplingRequest& request, const std::filesystem::path& model);

}  // namespace kvc
