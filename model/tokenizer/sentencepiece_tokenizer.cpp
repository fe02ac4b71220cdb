#include "model/tokenizer/tokenizer_backend.h"

#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "model/tokenizer/sentencepiece_settings.h"
#include "model/tokenizer/sentencepiece_split.h"
#include "model/tokenizer/sentencepiece_vocabulary.h"

namespace kvc {

namespace {

using Ids = std::vector<std::int64_t>;

Json token_json(const SplitToken& token) {
  return Json::array({token.content, token.lstrip, token.rstrip, token.single_word});
}

// Everything of the settings that ids or text depend on.
std::string settings_text(const SentencepieceSettings& settings) {
  Json json = Json::array({settings.family == SentencepieceSettings::Family::kGemma,
                           settings.legacy, settings.add_prefix_space, settings.add_bos,
                           settings.add_eos, settings.bos.value_or(""), settings.eos.value_or(""),
                           settings.unknown.value_or(""), settings.additional});
  for (const SplitToken& token : settings.special) json.push_back(token_json(token));
  for (const auto& [id, token] : settings.added) {
    json.push_back(Json::array({id, token_json(token)}));
  }
  return json.dump();
}

class SentencepieceTokenizer : public TokenizerBackend {
 public:
  SentencepieceTokenizer(const std::string& model, SentencepieceSettings settings,
                         const std::string& file);
  Ids encode(std::string_view text) const override;
  Ids with_special_tokens(Ids ids) const override;
  std::string decode(const Ids& ids, bool skip_special_tokens) const override {
    return sentencepiece_text(vocabulary_, ids, skip_special_tokens);
  }
  std::int64_t id_bound() const override { return vocabulary_.id_bound(); }
  const std::string& hash() const override { return hash_; }

 private:
  std::vector<std::string> split(std::string_view text) const;
  void append_pieces(const std::string& part, std::vector<std::string>& tokens) const;

  std::string hash_;
  SentencepieceVocabulary vocabulary_;
  std::size_t num_unknown_pieces_ = 0;  // of the unknown token's own text
};

SentencepieceTokenizer::SentencepieceTokenizer(const std::string& model,
                                               SentencepieceSettings settings,
                                               const std::string& file)
    : hash_(sha256_hex(sha256_hex(model) + settings_text(settings))),
      vocabulary_(model, std::move(settings), file) {
  const SentencepieceSettings& known = vocabulary_.settings();
  KVC_CHECK(!known.add_bos || known.bos, "{}: add_bos_token without a bos_token", file);
  KVC_CHECK(!known.add_eos || known.eos, "{}: add_eos_token without an eos_token", file);
  if (!vocabulary_.is_plain()) {
    KVC_CHECK(known.unknown, "{}: \"legacy\": false needs an unk_token", file);
    num_unknown_pieces_ = vocabulary_.pieces_of(*known.unknown).size();
  }
}

// The text's added tokens and the stretches between them, stripped as the tokens' flags ask.
std::vector<std::string> SentencepieceTokenizer::split(std::string_view text) const {
  std::vector<std::u32string> parts = vocabulary_.trie().split(to_code_points(text));
  std::u32string none;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SplitToken* token = vocabulary_.added(to_utf8(parts[i]));
    if (token == nullptr) continue;
    std::u32string& left = i > 0 ? parts[i - 1] : none;
    std::u32string& right = i + 1 < parts.size() ? parts[i + 1] : none;
    const bool touches_left = !left.empty() && left.back() != U' ';
    const bool touches_right = !right.empty() && right.front() != U' ';
    if (token->rstrip) right = std::u32string(without_leading_space(right));
    if (token->lstrip) left = std::u32string(without_trailing_space(left));
    if (token->single_word && touches_left) {
      left += std::exchange(parts[i], {});
    } else if (token->single_word && touches_right) {
      right = std::exchange(parts[i], {}) + right;
    }
  }
  std::vector<std::string> texts;
  for (const std::u32string& part : parts) {
    if (!part.empty()) texts.push_back(to_utf8(part));
  }
  return texts;
}

// Without its dummy prefix the library drops a leading space, unless something stands before it.
void SentencepieceTokenizer::append_pieces(const std::string& part,
                                           std::vector<std::string>& tokens) const {
  const bool guarded =
      !vocabulary_.is_plain() && (part.starts_with(kSpaceMark) || part.starts_with(' '));
  std::vector<std::string> pieces =
      vocabulary_.pieces_of(guarded ? *vocabulary_.settings().unknown + part : part);
  auto first = pieces.begin();
  if (guarded && pieces.size() >= num_unknown_pieces_) {
    first += static_cast<std::ptrdiff_t>(num_unknown_pieces_);
  }
  tokens.insert(tokens.end(), std::make_move_iterator(first),
                std::make_move_iterator(pieces.end()));
}

Ids SentencepieceTokenizer::encode(std::string_view text) const {
  std::string marked(text);
  const bool marks = !vocabulary_.is_plain() && !text.empty();
  if (marks) {
    const bool prefix = vocabulary_.settings().add_prefix_space;
    marked = (prefix ? std::string(kSpaceMark) : "") + spaces_for_marks(text);
  }
  std::vector<std::string> tokens;
  for (const std::string& part : split(marked)) {
    if (vocabulary_.added(part) != nullptr) {
      tokens.push_back(part);
    } else {
      append_pieces(part, tokens);
    }
  }
  const bool lone_mark =
      marks && tokens.size() > 1 && tokens[0] == kSpaceMark && vocabulary_.is_special(tokens[1]);
  Ids ids;
  for (std::size_t i = lone_mark ? 1 : 0; i < tokens.size(); ++i) {
    ids.push_back(vocabulary_.id_of(tokens[i]));
  }
  return ids;
}

Ids SentencepieceTokenizer::with_special_tokens(Ids ids) const {
  const SentencepieceSettings& settings = vocabulary_.settings();
  if (settings.add_bos) ids.insert(ids.begin(), vocabulary_.id_of(*settings.bos));
  if (settings.add_eos) ids.push_back(vocabulary_.id_of(*settings.eos));
  return ids;
}

}  // namespace

std::unique_ptr<TokenizerBackend> read_sentencepiece_tokenizer(
    const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "tokenizer.model";
  return std::make_unique<SentencepieceTokenizer>(
      read_sentencepiece_file(file), read_sentencepiece_settings(directory), file.string());
}

}  // namespace kvc
