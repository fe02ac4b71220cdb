// A text cut into pieces within which tokens may merge: what pre-tokenizers work on.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/component.h"

namespace kvc {

struct Piece {
  std::size_t begin = 0, end = 0;  // never empty
};

struct Pieces {
  std::string text;
  std::vector<Piece> pieces;  // in order, not overlapping; what none holds was removed
  // A piece that starts before this offset stands for the very beginning of what was typed.
  std::size_t first_end = 0;

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

// One stretch of a text that a pattern was looked for in: matches and what lies between them.
struct TextSegment {
  std::size_t begin = 0, end = 0;
  bool is_match = false;
};

// Appends the segments of `text`, which is not empty; together they cover it.
using SegmentFinder =
    std::function<void(std::string_view text, SearchBudget&, std::vector<TextSegment>& segments)>;

// What becomes of a match.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior read_split_behavior(const TokenizerJson& json, const std::string& subject);

// Cuts each piece at its matches.
void split_pieces(Pieces& pieces, const SegmentFinder& find, SplitBehavior behavior,
                  SearchBudget& budget);

// Rebuilds the text: `append(piece, result)` appends what becomes of a piece.
template <typename Append>
void rewrite_pieces(Pieces& pieces, Append append) {
  std::string result;
  result.reserve(pieces.text.size() + pieces.text.size() / 4);
  std::size_t first_end = 0;
  for (Piece& piece : pieces.pieces) {
    const std::size_t begin = result.size();
    append(piece, result);
    // Only whole pieces are told apart afterwards by pre-tokenizers that rewrite.
    if (piece.begin < pieces.first_end) {
      first_end = piece.end <= pieces.first_end ? result.size() : begin + 1;
    }
    piece = {begin, result.size()};
  }
  pieces.text = std::move(result);
  pieces.first_end = first_end;
}

}  // namespace kvc
