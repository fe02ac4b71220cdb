#include "model/tokenizer/parts.h"

#include "model/tokenizer/pieces.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

// Where the character is put before a text that does not start with it.
enum class PrependScheme { kFirst, kNever, kAlways };

struct Metaspace {
  std::string replacement;  // one character, as UTF-8
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};

PrependScheme read_scheme(const TokenizerJson& json, const std::string& subject) {
  const auto name = component_value<std::string>(json, "prepend_scheme", "always", subject);
  KVC_CHECK(name == "first" || name == "never" || name == "always",
            "{}: prepend_scheme \"{}\" is not known; supported: first, never, always", subject,
            name);
  const bool add_prefix_space = component_value<bool>(json, "add_prefix_space", true, subject);
  KVC_CHECK(add_prefix_space || name == "never",
            "{}: add_prefix_space false contradicts prepend_scheme \"{}\", expected \"never\"",
            subject, name);
  if (name == "first") return PrependScheme::kFirst;
  return name == "never" ? PrependScheme::kNever : PrependScheme::kAlways;
}

Metaspace read_metaspace(const TokenizerJson& json, const std::string& subject) {
  Metaspace metaspace;
  append_utf8(metaspace.replacement, component_character(json, "replacement", subject));
  metaspace.scheme = read_scheme(json, subject);
  metaspace.split = component_value<bool>(json, "split", true, subject);
  return metaspace;
}

void replace_spaces(const Metaspace& metaspace, Pieces& pieces) {
  const std::string text = pieces.text;
  const std::size_t first_end = pieces.first_end;
  rewrite_pieces(pieces, [&](const Piece& piece, std::string& result) {
    const std::string_view view =
        std::string_view(text).substr(piece.begin, piece.end - piece.begin);
    const bool wanted = metaspace.scheme == PrependScheme::kAlways ||
                        (metaspace.scheme == PrependScheme::kFirst && piece.begin < first_end);
    const bool there = view.front() == ' ' || view.starts_with(metaspace.replacement);
    if (wanted && !there) result += metaspace.replacement;
    for (const char c : view) {
      if (c == ' ') {
        result += metaspace.replacement;
      } else {
        result += c;
      }
    }
  });
}

// Cuts before each replacement character.
void cut_before(const std::string& replacement, Pieces& pieces) {
  std::vector<Piece> result;
  for (const Piece& piece : pieces.pieces) {
    const std::string_view view = pieces.view(piece);
    std::size_t begin = 0;
    while (begin < view.size()) {
      const std::size_t end = std::min(view.find(replacement, begin + 1), view.size());
      result.push_back({piece.begin + begin, piece.begin + end});
      begin = end;
    }
  }
  pieces.pieces = std::move(result);
}

}  // namespace

PreTokenizer make_metaspace_pre_tokenizer(const TokenizerJson& json, const std::string& subject) {
  return [metaspace = read_metaspace(json, subject)](Pieces& pieces, SearchBudget&) {
    replace_spaces(metaspace, pieces);
    if (metaspace.split) cut_before(metaspace.replacement, pieces);
  };
}

TokenDecoder make_metaspace_decoder(const TokenizerJson& json, const std::string& subject) {
  return [metaspace = read_metaspace(json, subject)](std::vector<std::string>& tokens) {
    bool dropped = metaspace.scheme != PrependScheme::kNever;  // in the first token only
    for (std::string& token : tokens) {
      std::string text;
      for (std::size_t begin = 0; begin < token.size();) {
        const std::size_t match = std::min(token.find(metaspace.replacement, begin), token.size());
        text += token.substr(begin, match - begin);
        if (match < token.size() && !dropped) text += ' ';
        begin = match + metaspace.replacement.size();
      }
      token = std::move(text);
      dropped = false;
    }
  };
}

}  // namespace kvc
