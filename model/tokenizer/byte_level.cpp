#include "model/tokenizer/parts.h"

#include <array>
#include <optional>
#include <utility>

#include "model/tokenizer/pieces.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::size_t kNumCharacters = 0x144;  // one past the last character that stands for a byte

// Printable bytes stand for themselves; the others follow from U+0100 on, in byte order.
struct ByteAlphabet {
  std::array<std::string, 256> character;  // UTF-8
  std::array<int, kNumCharacters> byte;    // -1: no byte

  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned value = 0; value < 256; ++value) {
      const bool printable = (value >= 0x21 && value <= 0x7E) || (value >= 0xA1 && value != 0xAD);
      const char32_t code_point = printable ? value : next++;
      append_utf8(character[value], code_point);
      byte[code_point] = static_cast<int>(value);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet instance;
  return instance;
}

// nullopt: some character stands for no byte.
std::optional<std::string> characters_to_bytes(std::string_view token) {
  std::string bytes;
  for (const Character& character : Characters(token)) {
    const char32_t value = character.value;
    if (value >= kNumCharacters || alphabet().byte[value] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[value]);
  }
  return bytes;
}

std::size_t contraction_length(std::string_view text) {
  for (const std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(suffix)) return suffix.size();
  }
  return 0;
}

struct Run {
  std::size_t end = 0;
  std::size_t last = 0;  // where its last character starts
};

// The longest run of characters of one class; text[begin] belongs to it.
Run run_of(CharacterClass kind, std::string_view text, std::size_t begin) {
  Run run{begin, begin};
  while (run.end < text.size()) {
    const CodePoint code = code_point_at(text, run.end);
    if (character_class(code.value) != kind) break;
    run.last = run.end;
    run.end += code.length;
  }
  return run;
}

void find_gpt2_pieces(std::string_view text, SearchBudget&, std::vector<TextSegment>& segments) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = gpt2_piece_end(text, begin);
    segments.push_back({begin, end, true});
    begin = end;
  }
}

void append_characters(std::string_view text, std::string& result) {
  for (const char byte : text) result += alphabet().character[static_cast<unsigned char>(byte)];
}

void prefix_with_space(Pieces& pieces) {
  const std::string text = pieces.text;
  rewrite_pieces(pieces, [&text](const Piece& piece, std::string& result) {
    if (text[piece.begin] != ' ') result += ' ';
    result.append(text, piece.begin, piece.end - piece.begin);
  });
}

}  // namespace

std::size_t gpt2_piece_end(std::string_view text, std::size_t begin) {
  if (const std::size_t length = contraction_length(text.substr(begin)); length > 0) {
    return begin + length;
  }
  const std::size_t after_space = begin + (text[begin] == ' ' ? 1 : 0);
  if (after_space < text.size()) {
    const CharacterClass kind = character_class(code_point_at(text, after_space).value);
    if (kind != CharacterClass::kWhiteSpace) return run_of(kind, text, after_space).end;
  }
  // White space gives its last character to the word that follows, unless it is all there is.
  const Run run = run_of(CharacterClass::kWhiteSpace, text, begin);
  return run.end == text.size() || run.last == begin ? run.end : run.last;
}

std::string bytes_to_characters(std::string_view text) {
  std::string result;
  append_characters(text, result);
  return result;
}

PreTokenizer make_byte_level_pre_tokenizer(const TokenizerJson& json, const std::string& subject) {
  const bool add_prefix_space = component_value<bool>(json, "add_prefix_space", subject);
  const bool use_regex = component_value<bool>(json, "use_regex", true, subject);
  return [add_prefix_space, use_regex](Pieces& pieces, SearchBudget& budget) {
    if (add_prefix_space) prefix_with_space(pieces);
    if (use_regex) split_pieces(pieces, find_gpt2_pieces, SplitBehavior::kIsolated, budget);
    const std::string text = pieces.text;
    rewrite_pieces(pieces, [&text](const Piece& piece, std::string& result) {
      append_characters(std::string_view(text).substr(piece.begin, piece.end - piece.begin),
                        result);
    });
  };
}

TokenDecoder make_byte_level_decoder(const TokenizerJson&, const std::string&) {
  return [](std::vector<std::string>& tokens) {
    std::string bytes;
    for (const std::string& token : tokens) bytes += characters_to_bytes(token).value_or(token);
    tokens = {replace_invalid_utf8(bytes)};
  };
}

}  // namespace kvc
