#include "model/tokenizer/replace.h"

#include <utility>
#include <vector>

namespace kvc {

Replacement::Replacement(const TokenizerJson& json, const std::string& subject)
    : pattern_(json, subject), content_(component_value<std::string>(json, "content", subject)) {}

void Replacement::apply(AlignedText& aligned, SearchBudget& budget) const {
  if (aligned.text.empty()) return;
  std::vector<TextSegment> segments;
  pattern_.find_all(aligned.text, budget, segments);
  std::string result;
  result.reserve(aligned.text.size());
  std::size_t first_end = 0;
  for (const TextSegment& segment : segments) {
    const std::size_t begin = result.size();
    result += segment.is_match ? content_
                               : aligned.text.substr(segment.begin, segment.end - segment.begin);
    // What replaces a match stands for the match's last character.
    if (segment.end <= aligned.first_end) {
      first_end = result.size();
    } else if (!segment.is_match && segment.begin < aligned.first_end) {
      first_end = begin + aligned.first_end - segment.begin;
    }
  }
  aligned = {std::move(result), first_end};
}

}  // namespace kvc
