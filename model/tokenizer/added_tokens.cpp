#include "model/tokenizer/added_tokens.h"

#include <algorithm>

namespace kvc {

namespace {

AddedToken read_added_token(const TokenizerJson& json, const TextNormalizer& normalizer,
                            const std::string& subject) {
  KVC_CHECK(json.is_object(), "{}: a member is not an object", subject);
  AddedToken token;
  token.id = component_value<std::int32_t>(json, "id", subject);
  token.content = component_value<std::string>(json, "content", subject);
  token.single_word = component_value<bool>(json, "single_word", subject);
  token.lstrip = component_value<bool>(json, "lstrip", subject);
  token.rstrip = component_value<bool>(json, "rstrip", subject);
  token.normalized = component_value<bool>(json, "normalized", subject);
  token.special = component_value<bool>(json, "special", subject);
  KVC_CHECK(!token.content.empty(), "{}: the token with id {} is empty", subject, token.id);
  token.normalized_content =
      token.normalized && normalizer ? normalizer(token.content) : token.content;
  return token;
}

}  // namespace

AddedTokens::AddedTokens(const TokenizerJson& json, const Vocabulary& vocabulary,
                         const TextNormalizer& normalizer, const std::string& subject) {
  if (json.is_null()) return;
  KVC_CHECK(json.is_array(), "{}: expected a list", subject);
  std::int64_t next_id = vocabulary.num_tokens();
  for (const TokenizerJson& member : json) {
    AddedToken token = read_added_token(member, normalizer, subject);
    const auto known = vocabulary.id(token.content);
    const std::int64_t id = known ? *known : next_id++;
    KVC_CHECK(token.id == id,
              "{}: token \"{}\" has id {}, but the tokenizers library gives it id {}; save the "
              "tokenizer again with that library",
              subject, token.content, token.id, id);
    if (token.special) special_[token.content] = true;
    const bool inserted = tokens_.emplace(id, std::move(token)).second;
    KVC_CHECK(inserted, "{}: id {} appears twice", subject, id);
  }
  for (const auto& [id, token] : tokens_) {
    (token.normalized ? normalized_ : raw_).add(token.normalized_content, token);
  }
}

const AddedToken* AddedTokens::find(std::int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

bool AddedTokens::is_special(const std::string& content) const {
  return special_.count(content) != 0;
}

}  // namespace kvc
