#include "model/tokenizer/sentencepiece_settings.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "model/tokenizer/added_tokens.h"

namespace kvc {

namespace {

namespace fs = std::filesystem;
using Family = SentencepieceSettings::Family;

// In the order in which transformers gives ids to those that are in no list of tokens.
constexpr std::array<const char*, 7> kSpecialNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

struct FamilyRow {
  Family family;
  const char* tokenizer_class;
  std::array<const char*, 4> model_types;  // of config.json, where no class is named
  std::array<const char*, 7> defaults;     // of kSpecialNames
};

constexpr FamilyRow kFamilies[] = {
    {Family::kLlama,
     "LlamaTokenizer",
     {"llama", "mistral", "mixtral", "mistral"},
     {"<s>", "</s>", "<unk>", nullptr, nullptr, nullptr, nullptr}},
    {Family::kGemma,
     "GemmaTokenizer",
     {"gemma", "gemma2", "gemma3", "gemma3_text"},
     {"<bos>", "<eos>", "<unk>", nullptr, "<pad>", nullptr, nullptr}},
};

Json read_optional(const fs::path& file) {
  if (!fs::exists(file)) return Json::object();
  Json json = read_json(file, 64u << 20);
  KVC_CHECK(json.is_object(), "{}: expected an object", file.string());
  return json;
}

const FamilyRow& find_family(const Json& config, const fs::path& directory) {
  const fs::path file = directory / "tokenizer_config.json";
  const Json named = config.value("tokenizer_class", Json());
  if (named.is_string()) {
    std::string name = named.get<std::string>();
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    for (const FamilyRow& row : kFamilies) {
      if (name == row.tokenizer_class) return row;
    }
  }
  const Json type = read_optional(directory / "config.json").value("model_type", Json());
  for (const FamilyRow& row : kFamilies) {
    const bool known =
        std::find_if(row.model_types.begin(), row.model_types.end(),
                     [&](const char* name) { return type == name; }) != row.model_types.end();
    if (named.is_null() && known) return row;
  }
  fail(
      "{}: tokenizer_class {} with only a tokenizer.model is not supported (supported: "
      "LlamaTokenizer, GemmaTokenizer); load the tokenizer with transformers and save it, which "
      "writes a tokenizer.json",
      file.string(), named.dump());
}

bool flag(const Json& json, const char* key, bool absent, const std::string& subject) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return absent;
  KVC_CHECK(found->is_boolean(), "{}: \"{}\" is {}, expected true or false", subject, key,
            excerpt(*found));
  return found->get<bool>();
}

// A string, or an object with "content" and flags.
SplitToken split_token(const Json& json, const std::string& subject) {
  SplitToken token;
  const Json& content = json.is_object() ? json.value("content", Json()) : json;
  KVC_CHECK(content.is_string(), "{}: expected a token, found {}", subject, excerpt(json));
  token.content = content.get<std::string>();
  KVC_CHECK(!token.content.empty(), "{}: a token is empty", subject);
  KVC_CHECK(token.content.size() <= kMaxContentBytes,
            "{}: a token of {} bytes, expected {} at most", subject, token.content.size(),
            kMaxContentBytes);
  if (json.is_object()) {
    token.lstrip = flag(json, "lstrip", false, subject);
    token.rstrip = flag(json, "rstrip", false, subject);
    token.single_word = flag(json, "single_word", false, subject);
  }
  return token;
}

std::int32_t checked_id(std::int64_t id, const std::string& subject) {
  KVC_CHECK(id >= 0 && id < std::numeric_limits<std::int32_t>::max(), "{}: {} is no token id",
            subject, id);
  return static_cast<std::int32_t>(id);
}

std::map<std::int32_t, SplitToken> numbered_tokens(const Json& json, const std::string& subject) {
  KVC_CHECK(json.is_object(), "{}: expected an object", subject);
  std::map<std::int32_t, SplitToken> tokens;
  for (const auto& [key, value] : json.items()) {
    KVC_CHECK(
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos,
        "{}: \"{}\" is no token id", subject, key);
    KVC_CHECK(value.is_object(), "{}: id {}: expected an object", subject, key);
    tokens[checked_id(std::stoll(key), subject)] = split_token(value, subject);
  }
  return tokens;
}

std::map<std::int32_t, SplitToken> tokens_by_name(const Json& json, const std::string& subject) {
  std::map<std::int32_t, SplitToken> tokens;
  for (const auto& [name, id] : json.items()) {
    KVC_CHECK(id.is_number_integer() && !name.empty(), "{}: \"{}\" has id {}, expected a number",
              subject, name, excerpt(id));
    tokens[checked_id(id.get<std::int64_t>(), subject)] = {.content = name};
  }
  return tokens;
}

class SpecialTokens {
 public:
  explicit SpecialTokens(SentencepieceSettings& settings) : settings_(settings) {
    for (const auto& [id, added] : settings_.added) added_[added.content] = &added;
    for (const SplitToken& token : settings_.special) known_.insert(token.content);
  }

  // Flags of the last added token with the same content win.
  SplitToken resolve(SplitToken token) const {
    const auto added = added_.find(token.content);
    return added == added_.end() ? std::move(token) : *added->second;
  }

  void add(const SplitToken& token) {
    if (known_.insert(token.content).second) settings_.special.push_back(token);
  }

 private:
  SentencepieceSettings& settings_;
  std::unordered_map<std::string_view, const SplitToken*> added_;
  std::unordered_set<std::string> known_;
};

void read_special_tokens(const Json& config, const FamilyRow& family, const std::string& subject,
                         SentencepieceSettings& settings) {
  SpecialTokens special(settings);
  for (std::size_t i = 0; i < kSpecialNames.size(); ++i) {
    const auto found = config.find(kSpecialNames[i]);
    SplitToken token;
    if (found != config.end()) {
      if (found->is_null() || *found == "") continue;
      token = split_token(*found, subject);
    } else if (family.defaults[i] != nullptr) {
      token.content = family.defaults[i];
    } else {
      continue;
    }
    token = special.resolve(token);
    special.add(token);
    const std::string_view name = kSpecialNames[i];
    if (name == "bos_token") settings.bos = token.content;
    if (name == "eos_token") settings.eos = token.content;
    if (name == "unk_token") settings.unknown = token.content;
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json tokens = config.value(key, Json());
    KVC_CHECK(tokens.is_null() || tokens.is_array() || tokens.empty(),
              "{}: \"{}\" is not a list; save the tokenizer with transformers, which writes a "
              "tokenizer.json",
              subject, key);
    for (const Json& json : tokens) {
      const SplitToken token = special.resolve(split_token(json, subject));
      special.add(token);
      settings.additional.push_back(token.content);
    }
  }
}

void refuse_other_settings(const Json& config, const std::string& subject) {
  const Json kwargs = config.value("sp_model_kwargs", Json());
  KVC_CHECK(kwargs.is_null() || kwargs.empty(),
            "{}: sp_model_kwargs is {}; sampling while tokenizing is not supported", subject,
            excerpt(kwargs));
  KVC_CHECK(!flag(config, "split_special_tokens", false, subject),
            "{}: split_special_tokens is not supported; remove the key", subject);
}

}  // namespace

SentencepieceSettings read_sentencepiece_settings(const fs::path& directory) {
  const fs::path file = directory / "tokenizer_config.json";
  const std::string subject = file.string();
  Json config = read_optional(file);
  const FamilyRow& family = find_family(config, directory);
  refuse_other_settings(config, subject);
  SentencepieceSettings settings;
  settings.family = family.family;
  settings.legacy = flag(config, "legacy", true, subject);
  settings.add_prefix_space =
      flag(config, "add_prefix_space", !config.contains("add_prefix_space"), subject);
  settings.add_bos = flag(config, "add_bos_token", !config.contains("add_bos_token"), subject);
  settings.add_eos = flag(config, "add_eos_token", false, subject);
  const auto added = config.find("added_tokens_decoder");
  if (added != config.end()) {
    settings.added = numbered_tokens(*added, subject + ": added_tokens_decoder");
  } else {
    // Directories of older versions keep them in files of their own.
    const Json map = read_optional(directory / "special_tokens_map.json");
    for (const auto& [key, value] : map.items()) config[key] = value;
    const fs::path names = directory / "added_tokens.json";
    settings.added = tokens_by_name(read_optional(names), names.string());
  }
  read_special_tokens(config, family, subject, settings);
  return settings;
}

}  // namespace kvc
