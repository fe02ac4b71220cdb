#include "model/tokenizer/bpe.h"

#include <utility>

#include "core/json.h"
#include "model/tokenizer/vocabulary.h"

namespace kvc {

namespace {

using TokenPair = std::pair<std::string, std::string>;

void check_kind(const TokenizerJson& json, const std::string& subject) {
  KVC_CHECK(json.is_object(), "{}: expected an object, found {}", subject, json.type_name());
  // Files of old versions do not name the kind; only BPE has merges.
  const char* untyped = json.contains("merges") ? "BPE" : "(unnamed)";
  const auto type = component_value<std::string>(json, "type", untyped, subject);
  KVC_CHECK(type == "BPE", "{}: \"{}\" is not supported; supported: BPE", subject, type);
  const auto dropout = json.find("dropout");
  KVC_CHECK(dropout == json.end() || dropout->is_null() || *dropout == 0.0,
            "{}: dropout is not supported; set it to null", subject);
}

Vocabulary read_vocabulary(const TokenizerJson& json, const std::string& subject) {
  const auto tokens = json.find("vocab");
  KVC_CHECK(tokens != json.end() && tokens->is_object(),
            "{}: \"vocab\" is missing or not an object of token: id", subject);
  // Bounds the memory that a file can ask for; vocabularies have few gaps.
  const std::uint64_t max_id = (1u << 16) + 16 * tokens->size();
  Vocabulary vocabulary;
  vocabulary.reserve(tokens->size());
  for (const auto& [token, id] : tokens->items()) {
    KVC_CHECK(id.is_number_unsigned() && id.get<std::uint64_t>() <= max_id,
              "{}: token \"{}\" has id {}, expected a number from 0 to {}", subject, token,
              excerpt(id), max_id);
    vocabulary.add(token, id.get<std::int32_t>(), subject);
  }
  return vocabulary;
}

// Both spellings: "a b" and ["a", "b"].
TokenPair read_merge(const TokenizerJson& merge, const std::string& subject) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0], merge[1]};
  }
  KVC_CHECK(merge.is_string(), "{}: merge {} is neither \"a b\" nor [\"a\", \"b\"]", subject,
            excerpt(merge));
  const auto& text = merge.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  KVC_CHECK(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
            "{}: merge \"{}\" is not two tokens with one space between them", subject, text);
  return {text.substr(0, space), text.substr(space + 1)};
}

bool is_version_line(const TokenizerJson& merge) {
  return merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version");
}

// `prefix` marks tokens that stand within a word; what merges loses it.
MergeTable read_merges(const TokenizerJson& json, const Vocabulary& vocabulary,
                       const std::string& prefix, const std::string& subject) {
  const auto merges = json.find("merges");
  KVC_CHECK(merges != json.end() && merges->is_array(), "{}: \"merges\" is missing or not a list",
            subject);
  MergeTable table(merges->size());
  const auto id_of = [&](const std::string& token) {
    const auto id = vocabulary.id(token);
    KVC_CHECK(id.has_value(), "{}: a merge needs token \"{}\", which the vocabulary lacks", subject,
              token);
    return *id;
  };
  std::int32_t rank = 0;
  for (const TokenizerJson& merge : *merges) {
    if (is_version_line(merge)) continue;
    const auto [left, right] = read_merge(merge, subject);
    const std::int32_t left_id = id_of(left), right_id = id_of(right);
    KVC_CHECK(right.size() >= prefix.size(),
              "{}: a merge needs token \"{}\" without its prefix \"{}\"", subject, right, prefix);
    table.add(left_id, right_id, {rank++, id_of(left + right.substr(prefix.size()))});
  }
  return table;
}

std::vector<std::int32_t> find_byte_tokens(const Vocabulary& vocabulary) {
  std::vector<std::int32_t> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.push_back(vocabulary.id(token_of_byte(static_cast<unsigned char>(byte))).value_or(-1));
  }
  return tokens;
}

}  // namespace

BpeModel read_bpe_model(const TokenizerJson& json, const std::string& subject) {
  check_kind(json, subject);
  BpeModel model;
  model.vocabulary = read_vocabulary(json, subject);
  model.prefix = component_value<std::string>(json, "continuing_subword_prefix", "", subject);
  model.suffix = component_value<std::string>(json, "end_of_word_suffix", "", subject);
  model.merges = read_merges(json, model.vocabulary, model.prefix, subject);
  model.fuse_unknown = component_value<bool>(json, "fuse_unk", false, subject);
  model.byte_fallback = component_value<bool>(json, "byte_fallback", false, subject);
  model.ignore_merges = component_value<bool>(json, "ignore_merges", false, subject);
  model.byte_tokens = find_byte_tokens(model.vocabulary);
  model.unknown_token = component_value<std::string>(json, "unk_token", "", subject);
  model.unknown = model.vocabulary.id(model.unknown_token);
  return model;
}

}  // namespace kvc
