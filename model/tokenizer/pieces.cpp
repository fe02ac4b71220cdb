#include "model/tokenizer/pieces.h"

#include <algorithm>
#include <utility>

namespace kvc {

namespace {

struct BehaviorRow {
  std::string_view name;
  SplitBehavior behavior;
};

constexpr BehaviorRow kBehaviors[] = {
    {"Removed", SplitBehavior::kRemoved},
    {"Isolated", SplitBehavior::kIsolated},
    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    {"MergedWithNext", SplitBehavior::kMergedWithNext},
    {"Contiguous", SplitBehavior::kContiguous},
};

// Neighbours of one kind become one.
void merge_contiguous(std::vector<TextSegment>& segments) {
  std::size_t count = 0;
  bool previous_match = false;
  for (const TextSegment& segment : segments) {
    if (segment.is_match == previous_match && count > 0) {
      segments[count - 1].end = segment.end;
    } else {
      segments[count++] = segment;
    }
    previous_match = segment.is_match;
  }
  segments.resize(count);
}

// A match becomes the end of what stands before it, if that is no match.
void merge_with_previous(std::vector<TextSegment>& segments) {
  std::size_t count = 0;
  bool previous_match = false;
  for (const TextSegment& segment : segments) {
    if (segment.is_match && !previous_match && count > 0) {
      segments[count - 1].end = segment.end;
    } else {
      segments[count++] = segment;
    }
    previous_match = segment.is_match;
  }
  segments.resize(count);
}

void merge_with_next(std::vector<TextSegment>& segments) {
  std::size_t first = segments.size();
  bool next_match = false;
  for (std::size_t i = segments.size(); i-- > 0;) {
    const TextSegment segment = segments[i];
    if (segment.is_match && !next_match && first < segments.size()) {
      segments[first].begin = segment.begin;
    } else {
      segments[--first] = segment;
    }
    next_match = segment.is_match;
  }
  segments.erase(segments.begin(), segments.begin() + static_cast<std::ptrdiff_t>(first));
}

void apply_behavior(std::vector<TextSegment>& segments, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(segments, [](const TextSegment& segment) { return segment.is_match; });
      break;
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kMergedWithPrevious:
      merge_with_previous(segments);
      break;
    case SplitBehavior::kMergedWithNext:
      merge_with_next(segments);
      break;
    case SplitBehavior::kContiguous:
      merge_contiguous(segments);
      break;
  }
}

}  // namespace

SplitBehavior read_split_behavior(const TokenizerJson& json, const std::string& subject) {
  const auto name = component_value<std::string>(json, "behavior", subject);
  std::string known;
  for (const BehaviorRow& row : kBehaviors) {
    if (row.name == name) return row.behavior;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  fail("{}: behavior \"{}\" is not known; supported: {}", subject, name, known);
}

void split_pieces(Pieces& pieces, const SegmentFinder& find, SplitBehavior behavior,
                  SearchBudget& budget) {
  std::vector<Piece> result;
  result.reserve(pieces.text.size() / 8 + pieces.pieces.size());
  std::vector<TextSegment> segments;
  for (const Piece& piece : pieces.pieces) {
    segments.clear();
    find(pieces.view(piece), budget, segments);
    apply_behavior(segments, behavior);
    for (const TextSegment& segment : segments) {
      if (segment.begin == segment.end) continue;
      result.push_back({piece.begin + segment.begin, piece.begin + segment.end});
    }
  }
  pieces.pieces = std::move(result);
}

}  // namespace kvc
