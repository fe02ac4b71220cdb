#include "model/tokenizer/sentencepiece_vocabulary.h"

#include <utility>

namespace kvc {

namespace {

using Ids = std::vector<std::int64_t>;

// Ids that have a token and are not left out.
std::vector<std::int32_t> kept_ids(const SentencepieceVocabulary& vocabulary, const Ids& ids,
                                   bool skip_special_tokens) {
  std::vector<std::int32_t> kept;
  for (const std::int64_t wide : ids) {
    const auto id = static_cast<std::int32_t>(wide);
    if (vocabulary.token(id) == nullptr) continue;
    if (!skip_special_tokens || !vocabulary.is_special(id)) kept.push_back(id);
  }
  return kept;
}

// Llama: a stretch without dividing tokens. The space that encoding put first is taken away.
std::string llama_stretch(const SentencepieceVocabulary& vocabulary,
                          std::vector<std::string> tokens) {
  if (tokens.empty()) return "";
  const bool add_prefix_space = vocabulary.settings().add_prefix_space;
  if (add_prefix_space && tokens[0].starts_with(kSpaceMark)) tokens[0].erase(0, kSpaceMark.size());
  std::string text;
  std::vector<std::string> pieces;
  bool after_special = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (vocabulary.is_special(tokens[i])) {
      if (!after_special && i != 0 && vocabulary.settings().legacy) text += ' ';
      text += vocabulary.text_of(pieces) + tokens[i];
      pieces.clear();
      after_special = true;
      continue;
    }
    const bool has_mark = tokens[i].starts_with(kSpaceMark);
    if (after_special && i == 1 && add_prefix_space && !has_mark) text += ' ';
    pieces.push_back(tokens[i]);
    after_special = false;
  }
  return text + vocabulary.text_of(pieces);
}

std::string llama_text(const SentencepieceVocabulary& vocabulary,
                       const std::vector<std::int32_t>& ids) {
  std::string text;
  std::vector<std::string> stretch;
  for (const std::int32_t id : ids) {
    const std::string& token = *vocabulary.token(id);
    if (vocabulary.divides_text(token)) {
      text += llama_stretch(vocabulary, std::exchange(stretch, {})) + token;
    } else {
      stretch.push_back(token);
    }
  }
  return text + llama_stretch(vocabulary, std::move(stretch));
}

std::string gemma_text(const SentencepieceVocabulary& vocabulary,
                       const std::vector<std::int32_t>& ids) {
  std::string text;
  std::vector<int> pieces;
  for (const std::int32_t id : ids) {
    if (vocabulary.is_added(id)) {
      text += vocabulary.text_of(std::exchange(pieces, {})) + *vocabulary.token(id);
    } else {
      pieces.push_back(id);
    }
  }
  return spaces_for_marks(text + vocabulary.text_of(pieces));
}

}  // namespace

std::string sentencepiece_text(const SentencepieceVocabulary& vocabulary, const Ids& ids,
                               bool skip_special_tokens) {
  const std::vector<std::int32_t> kept = kept_ids(vocabulary, ids, skip_special_tokens);
  return vocabulary.settings().family == SentencepieceSettings::Family::kGemma
             ? gemma_text(vocabulary, kept)
             : llama_text(vocabulary, kept);
}

}  // namespace kvc
