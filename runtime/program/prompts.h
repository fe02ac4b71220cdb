// Inputs of kvrun: prompts as token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/program/run.h"

namespace kvc {

struct Prompts {
  std::vector<std::vector<std::int64_t>> ids;
  bool is_batch = false;               // --ids held a list of lists
  std::optional<Tokenizer> tokenizer;  // absent if the directory has none and --ids is given
};

// A whole UTF-8 text; Error naming the file if it is absent or not UTF-8.
std::string read_prompt_text(const std::filesystem::path& path);
// Throws UsageError unless exactly one source is given; Error for an empty prompt.
Prompts read_prompts(const RunOptions& options);
// Warns of a text with more tokens than the model has positions; true if it does.
bool warn_about_length(std::int64_t num_tokens, std::int64_t max_positions);
// A list of token ids from a JSON file; Error naming the file for anything else, an empty list included.
std::vector<std::int64_t> id_list(const Json& list, const std::filesystem::path& path);

}  // namespace kvc
