// tokenizer.json's "added_tokens": strings that become one token wherever they stand in a text,
// before the model sees it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/component.h"
#include "model/tokenizer/vocabulary.h"

namespace kvc {

constexpr std::size_t kMaxContentBytes =
    4096;  // of a token: bounds the time that looking for it takes

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  std::string normalized_content;  // differs from content only if `normalized`
  bool single_word = false;        // only if no word character touches it
  bool lstrip = false;             // takes the white space before it
  bool rstrip = false;             // takes the white space after it
  bool normalized = false;         // looked for in the normalized text
  bool special = false;            // left out by decode with skip_special_tokens
};

// A part of a text: an added token, or text between them.
struct TextPart {
  std::optional<std::int32_t> id;
  std::string_view text;
};

// A set of added tokens that are looked for together; leftmost match first, the longest of those.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher();
  // false: the pattern has a token already.
  bool add(std::string_view pattern, const AddedToken& token);
  // Cuts `text` into parts; text parts are never empty.
  std::vector<TextPart> split(std::string_view text) const;

 private:
  struct Node {
    std::map<char, std::size_t> children;
    const AddedToken* token = nullptr;
  };
  struct Match {
    std::size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  std::optional<Match> find(std::string_view text, std::size_t begin) const;

  std::vector<Node> nodes_;            // a trie over bytes; nodes_[0] is its root
  std::array<bool, 256> starts_ = {};  // bytes with which a pattern starts
};

class AddedTokens {
 public:
  AddedTokens() = default;
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;
  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;
  // Ids must be those that the library gives: the vocabulary's, or the next free ones in order.
  AddedTokens(const TokenizerJson& json, const Vocabulary& vocabulary,
              const TextNormalizer& normalizer, const std::string& subject);

  const AddedTokenMatcher& raw() const { return raw_; }                // on the text as it came
  const AddedTokenMatcher& normalized() const { return normalized_; }  // on the normalized text

  const AddedToken* find(std::int64_t id) const;  // nullptr: not an added token
  bool is_special(const std::string& content) const;
  std::int64_t id_bound() const { return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1; }

 private:
  std::map<std::int64_t, AddedToken> tokens_;  // by id; the matchers point into it
  std::set<std::string> special_;
  AddedTokenMatcher raw_, normalized_;
};

}  // namespace kvc
