#include "runtime/program/prompts.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "model/tokenizer/utf8.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

Prompts read_ids(const fs::path& path) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  const Json json = read_json(path, kMaxBytes);
  KVC_CHECK(json.is_array() && !json.empty(),
            "{}: expected a list of token ids or a list of such lists", path.string());
  Prompts prompts;
  prompts.is_batch = json.front().is_array();
  if (!prompts.is_batch) {
    prompts.ids.push_back(id_list(json, path));
    return prompts;
  }
  for (const Json& list : json) {
    KVC_CHECK(list.is_array(), "{}: lists of token ids expected, found {}", path.string(),
              list.dump());
    prompts.ids.push_back(id_list(list, path));
  }
  return prompts;
}

}  // namespace

std::vector<std::int64_t> id_list(const Json& list, const fs::path& path) {
  constexpr std::uint64_t kMaxId = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> ids;
  for (const Json& id : list) {
    KVC_CHECK(
        id.is_number_integer() && (!id.is_number_unsigned() || id.get<std::uint64_t>() <= kMaxId),
        "{}: expected token ids, found {}", path.string(), id.dump());
    ids.push_back(id.get<std::int64_t>());
  }
  KVC_CHECK(!ids.empty(), "{}: a list without token ids; give at least one", path.string());
  return ids;
}

std::string read_prompt_text(const fs::path& path) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 28;
  const std::string text = read_file(path, kMaxBytes);
  const auto invalid = first_invalid_utf8(text);
  KVC_CHECK(!invalid, "{}: byte {} is not UTF-8; convert the text to UTF-8", path.string(),
            invalid.value_or(0));
  return text;
}

bool warn_about_length(std::int64_t num_tokens, std::int64_t max_positions) {
  if (num_tokens <= max_positions) {
    return false;
  }
  log_warning(
      fmt::format("{} tokens may exceed the model's {} positions; text beyond them is unreliable",
                  num_tokens, max_positions));
  return true;
}

Prompts read_prompts(const RunOptions& options) {
  const int sources = static_cast<int>(!options.prompt.empty()) +
                      static_cast<int>(!options.prompt_file.empty()) +
                      static_cast<int>(!options.ids.empty());
  KVC_CHECK_USAGE(
      sources != 0,
      "no prompt: pass --prompt, --prompt-file or --ids with a prompt that is not empty");
  KVC_CHECK_USAGE(sources == 1, "give one of --prompt, --prompt-file and --ids, found {}", sources);
  if (!options.ids.empty()) {
    Prompts prompts = read_ids(options.ids);
    if (Tokenizer::exists(options.model)) {
      prompts.tokenizer = Tokenizer::load(options.model);
    }
    return prompts;
  }
  Prompts prompts;
  prompts.tokenizer = Tokenizer::load(options.model);
  const std::string text =
      options.prompt_file.empty() ? options.prompt : read_prompt_text(options.prompt_file);
  prompts.ids.push_back(prompts.tokenizer->encode(text));
  KVC_CHECK(!prompts.ids.front().empty(), "the prompt has no tokens; give a longer one");
  return prompts;
}

}  // namespace kvc
