#include "model/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "core/output.h"
#include "model/chat/jinja_ast.h"
#include "model/chat/jinja_interpreter.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTemplateBytes = 1u << 20, kMaxConfigBytes = 64u << 20;
constexpr std::array<const char*, 7> kSpecialTokens = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

Json read_optional(const fs::path& file) {
  if (!fs::exists(file)) return Json::object();
  Json json = read_json(file, kMaxConfigBytes);
  KVC_CHECK(json.is_object(), "{}: expected an object", file.string());
  return json;
}

// What the tokenizer's class gives where its files name no token.
Json default_tokens(const Json& config) {
  const Json name = config.value("tokenizer_class", Json());
  if (name == "LlamaTokenizer" || name == "LlamaTokenizerFast") {
    return {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  }
  if (name == "GemmaTokenizer" || name == "GemmaTokenizerFast") {
    return {{"bos_token", "<bos>"},
            {"eos_token", "<eos>"},
            {"unk_token", "<unk>"},
            {"pad_token", "<pad>"}};
  }
  return Json::object();
}

// The template of a list of objects with "name" and "template".
std::string default_of_list(const Json& list, const std::string& subject,
                            const std::string& remedy) {
  std::string names;
  for (const Json& one : list) {
    const Json name = one.is_object() ? one.value("name", Json()) : Json();
    const Json text = one.is_object() ? one.value("template", Json()) : Json();
    KVC_CHECK(name.is_string() && text.is_string(),
              "{}: \"chat_template\" is a list whose members lack \"name\" or \"template\"",
              subject);
    if (name == "default") return text.get<std::string>();
    names += (names.empty() ? "" : ", ") + name.get<std::string>();
  }
  fail("{}: has several chat templates ({}) and none named \"default\"; write one into a file. {}",
       subject, names, remedy);
}

}  // namespace

Json special_tokens(const fs::path& directory) {
  const Json config = read_optional(directory / "tokenizer_config.json");
  const Json defaults = default_tokens(config);
  const Json map = read_optional(directory / "special_tokens_map.json");
  const bool map_counts = !config.contains("added_tokens_decoder");
  Json tokens = Json::object();
  for (const char* key : kSpecialTokens) {
    Json token = defaults.value(key, Json());
    if (config.contains(key)) token = config[key];
    if (map.contains(key) && (map_counts || !config.contains(key))) token = map[key];
    if (token.is_object()) token = Json(token.value("content", Json()));
    if (token.is_string()) tokens[key] = token;
  }
  return tokens;
}

ChatTemplate ChatTemplate::read(const fs::path& file, const fs::path& directory) {
  return ChatTemplate(read_file(file, kMaxTemplateBytes), special_tokens(directory), file.string());
}

ChatTemplate ChatTemplate::load(const fs::path& directory, const std::string& remedy) {
  const fs::path file = directory / "chat_template.jinja";
  if (fs::exists(file)) return read(file, directory);
  const fs::path config_file = directory / "tokenizer_config.json";
  const std::string subject = config_file.string() + ": chat_template";
  const Json chosen = read_optional(config_file).value("chat_template", Json());
  KVC_CHECK(chosen.is_string() || chosen.is_array(),
            "{}: has no chat template (chat_template.jinja, or \"chat_template\" in "
            "tokenizer_config.json); base models have none. {}",
            directory.string(), remedy);
  return ChatTemplate(
      chosen.is_string() ? chosen.get<std::string>() : default_of_list(chosen, subject, remedy),
      special_tokens(directory), subject);
}

ChatTemplate::ChatTemplate(std::string_view source, const Json& special_tokens, std::string subject)
    : subject_(std::move(subject)), hash_(sha256_hex(sha256_hex(source) + special_tokens.dump())) {
  KVC_CHECK(source.size() <= kMaxTemplateBytes, "{}: {} bytes, expected at most {}", subject_,
            source.size(), kMaxTemplateBytes);
  KVC_CHECK(!first_invalid_utf8(source), "{}: not UTF-8", subject_);
  for (const auto& [name, token] : special_tokens.items()) {
    special_tokens_.emplace(name, jinja::Value::from_json(token));
  }
  try {
    block_ = std::make_shared<const jinja::Block>(jinja::parse(source));
  } catch (const Error& error) {
    fail("{}: {}", subject_, error.what());
  }
}

std::string ChatTemplate::render(const Json& variables, std::time_t now) const {
  std::map<std::string, jinja::Value> names = special_tokens_;
  for (const auto& [name, value] : variables.items()) {
    names[name] = jinja::Value::from_json(value);
  }
  try {
    return jinja::Interpreter(std::move(names), now).run(*block_);
  } catch (const Error& error) {
    check_interrupt();  // a signal ends the run with a code of its own
    fail("{}: {}", subject_, error.what());
  }
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, const Json& arguments,
                                 std::time_t now) const {
  Json variables = {{"messages", Json::array()},
                    {"tools", nullptr},
                    {"documents", nullptr},
                    {"add_generation_prompt", true}};
  for (const ChatMessage& message : messages) {
    const std::optional<std::size_t> invalid = first_invalid_utf8(message.content);
    KVC_CHECK(!invalid, "the {}'s message: byte {} is not UTF-8", message.role, *invalid);
    variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  for (const auto& [name, value] : arguments.items()) variables[name] = value;
  return render(variables, now);
}

}  // namespace kvc
