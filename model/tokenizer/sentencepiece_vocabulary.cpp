#include "model/tokenizer/sentencepiece_vocabulary.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace kvc {

namespace {

void check_status(const sentencepiece::util::Status& status, const std::string& file) {
  KVC_CHECK(status.ok(), "{}: sentencepiece says: {}", file, status.ToString());
}

}  // namespace

std::string spaces_for_marks(std::string_view text) {
  std::string spaced;
  for (std::size_t at = 0; at < text.size();) {
    const bool mark = text.substr(at).starts_with(kSpaceMark);
    spaced += mark ? ' ' : text[at];
    at += mark ? kSpaceMark.size() : 1;
  }
  return spaced;
}

SentencepieceVocabulary::SentencepieceVocabulary(const std::string& model,
                                                 SentencepieceSettings settings,
                                                 const std::string& file)
    : file_(file), settings_(std::move(settings)) {
  load(is_plain() ? model : without_dummy_prefix(model));
  number_special_tokens();
  index_tokens();
}

bool SentencepieceVocabulary::is_plain() const {
  return settings_.family == SentencepieceSettings::Family::kGemma || settings_.legacy;
}

void SentencepieceVocabulary::load(const std::string& model) {
  try {
    check_status(processor_.LoadFromSerializedProto(model), file_);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail("{}: sentencepiece says: {}; download the file again", file_, error.what());
  }
}

// Special tokens that are neither added tokens nor pieces get the next ids, counted by tokens: where
// ids have gaps they may take the id of another token, which then is no longer cut out of a text.
void SentencepieceVocabulary::number_special_tokens() {
  std::set<std::string> names;
  const int num_pieces = processor_.GetPieceSize();
  for (int id = 0; id < num_pieces; ++id) names.insert(*token(id));
  for (const auto& [id, added_token] : settings_.added) {
    names.insert(added_token.content);
    added_ids_[added_token.content] = id;
  }
  auto next_id = static_cast<std::int32_t>(names.size());
  for (const SplitToken& special : settings_.special) {
    if (added_ids_.count(special.content) != 0) continue;
    const bool is_new = names.insert(special.content).second;
    const std::int32_t id = is_new ? next_id++ : processor_.PieceToId(special.content);
    settings_.added[id] = special;
    added_ids_[special.content] = id;
  }
  id_bound_ = num_pieces;
  if (!settings_.added.empty()) {
    id_bound_ = std::max<std::int64_t>(id_bound_, settings_.added.rbegin()->first + 1);
  }
}

void SentencepieceVocabulary::index_tokens() {
  for (const SplitToken& special : settings_.special) {
    special_.insert(special.content);
    special_ids_.insert(id_of(special.content));
  }
  for (const auto& [id, added_token] : settings_.added) {
    trie_.add(to_code_points(added_token.content));
  }
  for (const auto& [content, id] : added_ids_) {
    if (!is_special(content)) dividing_.insert(content);
  }
  for (const std::string& content : settings_.additional) {
    if (id_of(content) >= processor_.GetPieceSize()) dividing_.insert(content);
  }
}

std::vector<std::string> SentencepieceVocabulary::pieces_of(std::string_view text) const {
  std::vector<std::string> pieces;
  check_status(processor_.Encode(text, &pieces), file_);
  return pieces;
}

std::string SentencepieceVocabulary::text_of(const std::vector<std::string>& pieces) const {
  std::string text;
  check_status(processor_.Decode(pieces, &text), file_);
  return text;
}

std::string SentencepieceVocabulary::text_of(const std::vector<int>& pieces) const {
  std::string text;
  check_status(processor_.Decode(pieces, &text), file_);
  return text;
}

std::int32_t SentencepieceVocabulary::id_of(std::string_view token) const {
  const auto added = added_ids_.find(token);
  return added != added_ids_.end() ? added->second : processor_.PieceToId(token);
}

const std::string* SentencepieceVocabulary::token(std::int32_t id) const {
  const auto added = settings_.added.find(id);
  if (added != settings_.added.end()) return &added->second.content;
  return id < processor_.GetPieceSize() ? &processor_.IdToPiece(id) : nullptr;
}

const SplitToken* SentencepieceVocabulary::added(std::string_view token) const {
  const auto id = added_ids_.find(token);
  return id == added_ids_.end() ? nullptr : &settings_.added.at(id->second);
}

}  // namespace kvc
