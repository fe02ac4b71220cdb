#include "model/tokenizer/parts.h"

#include <utility>

#include "model/tokenizer/pieces.h"
#include "model/tokenizer/text_pattern.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

PreTokenizer splitter(SegmentFinder find, SplitBehavior behavior) {
  return [find = std::move(find), behavior](Pieces& pieces, SearchBudget& budget) {
    split_pieces(pieces, find, behavior, budget);
  };
}

// Each character for which `belongs` holds is one match.
template <typename Belongs>
SegmentFinder character_finder(Belongs belongs) {
  return [belongs](std::string_view text, SearchBudget&, std::vector<TextSegment>& segments) {
    std::size_t done = 0;
    for (const Character& character : Characters(text)) {
      if (!belongs(character.value)) continue;
      if (done < character.begin) segments.push_back({done, character.begin, false});
      segments.push_back({character.begin, character.end(), true});
      done = character.end();
    }
    if (done < text.size()) segments.push_back({done, text.size(), false});
  };
}

enum class WordKind { kWord, kSpace, kOther };

WordKind word_kind(char32_t code_point) {
  if (is_word_character(code_point)) return WordKind::kWord;
  return is_white_space(code_point) ? WordKind::kSpace : WordKind::kOther;
}

// White space is what matches; runs of word characters and runs of others lie between.
void find_outside_words(std::string_view text, SearchBudget&, std::vector<TextSegment>& segments) {
  WordKind previous = WordKind::kSpace;
  for (const Character& character : Characters(text)) {
    const WordKind kind = word_kind(character.value);
    if (!segments.empty() && kind == previous) {
      segments.back().end = character.end();
    } else {
      segments.push_back({character.begin, character.end(), kind == WordKind::kSpace});
    }
    previous = kind;
  }
}

}  // namespace

PreTokenizer make_split(const TokenizerJson& json, const std::string& subject) {
  const TextPattern pattern(json, subject);
  const SplitBehavior behavior = read_split_behavior(json, subject);
  const bool invert = component_value<bool>(json, "invert", subject);
  return splitter(
      [pattern, invert](std::string_view text, SearchBudget& budget,
                        std::vector<TextSegment>& segments) {
        pattern.find_all(text, budget, segments);
        if (!invert) return;
        for (TextSegment& segment : segments) segment.is_match = !segment.is_match;
      },
      behavior);
}

PreTokenizer make_digits(const TokenizerJson& json, const std::string& subject) {
  const bool individual = component_value<bool>(json, "individual_digits", subject);
  return splitter(character_finder(is_numeric),
                  individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

PreTokenizer make_punctuation(const TokenizerJson& json, const std::string& subject) {
  const bool named = json.contains("behavior");
  return splitter(character_finder(is_punctuation),
                  named ? read_split_behavior(json, subject) : SplitBehavior::kIsolated);
}

PreTokenizer make_delimiter(const TokenizerJson& json, const std::string& subject) {
  const char32_t delimiter = component_character(json, "delimiter", subject);
  return splitter(character_finder([delimiter](char32_t code) { return code == delimiter; }),
                  SplitBehavior::kRemoved);
}

PreTokenizer make_whitespace(const TokenizerJson&, const std::string&) {
  return splitter(find_outside_words, SplitBehavior::kRemoved);
}

PreTokenizer make_whitespace_split(const TokenizerJson&, const std::string&) {
  return splitter(character_finder(is_white_space), SplitBehavior::kRemoved);
}

}  // namespace kvc
