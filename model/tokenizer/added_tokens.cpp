#include "model/tokenizer/added_tokens.h"

#include <utility>

#include "model/tokenizer/aligned_text.h"
#include "model/tokenizer/component.h"

namespace kvc {

namespace {

std::string normalize(const TextNormalizer& normalizer, const std::string& content) {
  AlignedText aligned{content};
  SearchBudget budget(content.size());
  normalizer(aligned, budget);
  return std::move(aligned.text);
}

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
  KVC_CHECK(token.content.size() <= kMaxContentBytes,
            "{}: the token with id {} has {} bytes, expected at most {}", subject, token.id,
            token.content.size(), kMaxContentBytes);
  token.normalized_content =
      token.normalized && normalizer ? normalize(normalizer, token.content) : token.content;
  return token;
}

}  // namespace

AddedTokens::AddedTokens(const TokenizerJson& json, const Vocabulary& vocabulary,
                         const TextNormalizer& normalizer, const std::string& subject) {
  if (json.is_null()) return;
  KVC_CHECK(json.is_array(), "{}: expected a list", subject);
  std::int64_t next_id = vocabulary.num_tokens();
  std::map<std::string, std::int64_t> own_ids;
  for (const TokenizerJson& member : json) {
    AddedToken token = read_added_token(member, normalizer, subject);
    if (token.content.empty()) continue;  // the library drops it as well
    const auto own = own_ids.find(token.content);
    const auto known = vocabulary.id(token.content);
    const std::int64_t id = own != own_ids.end() ? own->second : known ? *known : next_id++;
    KVC_CHECK(token.id == id,
              "{}: token \"{}\" has id {}, but the tokenizers library gives it id {}; save the "
              "tokenizer again with that library",
              subject, token.content, token.id, id);
    own_ids[token.content] = id;
    if (token.special) special_.insert(token.content);
    tokens_.insert_or_assign(id, std::move(token));  // the last of several counts
  }
  for (const auto& [id, token] : tokens_) {
    const std::string& pattern = token.normalized_content;
    if (pattern.empty()) {  // nothing is left of it when it is normalized
      KVC_CHECK(
          !token.lstrip && !token.rstrip,
          "{}: token \"{}\" is empty once it is normalized, so that lstrip and rstrip give it "
          "white space of its neighbours, expected a token of which something is left; set "
          "\"normalized\" to false, or leave the token out",
          subject, token.content);
      continue;
    }
    KVC_CHECK((token.normalized ? normalized_ : raw_).add(pattern, token),
              "{}: token \"{}\" and another one are both looked for as \"{}\"", subject,
              token.content, pattern);
  }
}

const AddedToken* AddedTokens::find(std::int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

bool AddedTokens::is_special(const std::string& content) const {
  return special_.contains(content);
}

}  // namespace kvc
