// A loaded sentencepiece model together with the added and special tokens of its directory.
#pragma once

#include <sentencepiece_processor.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <filesystem>
#include "model/tokenizer/sentencepiece_settings.h"
#include "model/tokenizer/sentencepiece_split.h"
#include "model/tokenizer/vocabulary.h"

namespace kvc {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581: a space inside of pieces
std::string spaces_for_marks(std::string_view text);

class SentencepieceVocabulary {
 public:
  // `model`: the checked bytes of `file`.
  SentencepieceVocabulary(const std::string& model, SentencepieceSettings settings,
                          const std::string& file);

  const SentencepieceSettings& settings() const { return settings_; }
  // Every stretch of text goes to the model as it is.
  bool is_plain() const;

  std::vector<std::string> pieces_of(std::string_view text) const;
  std::string text_of(const std::vector<std::string>& pieces) const;
  std::string text_of(const std::vector<int>& pieces) const;

  std::int64_t id_bound() const { return id_bound_; }
  std::int32_t id_of(std::string_view token) const;
  const std::string* token(std::int32_t id) const;  // nullptr: no token has this id
  // nullptr: not an added token.
  const SplitToken* added(std::string_view token) const;
  bool is_added(std::int32_t id) const { return settings_.added.count(id) != 0; }
  bool is_special(const std::string& token) const { return special_.count(token) != 0; }
  bool is_special(std::int32_t id) const { return special_ids_.count(id) != 0; }
  // Llama decodes the tokens between such ones as one text.
  bool divides_text(const std::string& token) const { return dividing_.count(token) != 0; }
  const TokenTrie& trie() const { return trie_; }  // of added and special tokens

 private:
  void load(const std::string& model);
  void number_special_tokens();
  void index_tokens();

  std::string file_;
  SentencepieceSettings settings_;
  sentencepiece::SentencePieceProcessor processor_;
  std::int64_t id_bound_ = 0;
  StringMap<std::int32_t> added_ids_;
  TokenTrie trie_;
  std::set<std::string> special_, dividing_;
  std::set<std::int32_t> special_ids_;
};

// Ids to text, as transformers' sentencepiece tokenizers do it without spaces between special
// tokens.
std::string sentencepiece_text(const SentencepieceVocabulary& vocabulary,
                               const std::vector<std::int64_t>& ids, bool skip_special_tokens);

// tokenizer.model: a sentencepiece model, checked before the sentencepiece library sees it. The
// library trusts the lookup table of a normalizer and would read outside of a damaged one.
// The file's bytes. Error naming the file unless it is a sentencepiece model whose pieces are
// UTF-8 with finite scores and whose tables stay inside themselves.
std::string read_sentencepiece_file(const std::filesystem::path& file);

// The same model without the space that it puts before every text (normalizer_spec.add_dummy_prefix
// false): of a field that stands twice in a protocol buffer the last one counts.
std::string without_dummy_prefix(std::string model);

}  // namespace kvc
