// Settings of generation_config.json.
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
// temperature, top_k, top_p, min_p and repetition_penalty of generation_config.json; missing ones are
// transformers' defaults: 1, 50, 1, 0 and 1. Error naming the file for impossible values.
SamplingOptions authors_sampling(const std::filesystem::path& model);

// Requested sampling: `sample` reads generation_config.json, otherwise nothing is filtered; each
// number overrides one. Greedy if neither `sample` nor a temperature is given.
struct SamplingRequest {
  bool sample = false;
  std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{};
  std::optional<std::int64_t> top_k{};
};
// Throws UsageError for what check (runtime/sampler.h) refuses.
SamplingOptions resolve(const SamplingRequest& request, const std::filesystem::path& model);

}  // namespace kvc
