// What kvrun reads: prompts as token ids, and the ids that end a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/run.h"

namespace kvc {

struct Prompts {
  std::vector<std::vector<std::int64_t>> ids;
  bool is_batch = false;               // --ids held a list of lists
  std::optional<Tokenizer> tokenizer;  // absent where the directory has none and --ids needs none
};

// A UTF-8 text as a whole; Error naming the file when it is absent or something else.
std::string read_prompt_text(const std::filesystem::path& path);
// Throws UsageError unless exactly one source is named; Error for an empty prompt.
Prompts read_prompts(const RunOptions& options);
// eos_token_id of generation_config.json, or else of config.json.
std::vector<std::int64_t> stop_ids(const std::filesystem::path& model, const ModelConfig& config);

}  // namespace kvc
