#include "model/tokenizer/text_pattern.h"
#include <utility>
#include <vector>

namespace kvc {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // replacements may grow a text many times

}  // namespace

TextPattern::TextPattern(const TokenizerJson& json, const std::string& subject) {
  const auto pattern = json.find("pattern");
  KVC_CHECK(pattern != json.end() && pattern->is_object() && pattern->size() == 1,
            "{}: \"pattern\" is missing or not one pattern", subject);
  const std::string kind = pattern->begin().key();
  KVC_CHECK(kind == "String" || kind == "Regex",
            "{}: pattern kind \"{}\" is not supported; supported: String, Regex", subject, kind);
  const auto text = component_value<std::string>(*pattern, kind, subject);
  if (kind == "Regex" || text.empty()) {
    regex_ = std::make_shared<const Regex>(text, subject);
  } else {
    literal_ = text;
  }
}

void TextPattern::find_all(std::string_view text, SearchBudget& budget,
                           std::vector<TextSegment>& segments) const {
  if (regex_) return regex_->find_all(text, budget, segments);
  std::size_t done = 0;
  for (std::size_t match; (match = text.find(literal_, done)) != std::string_view::npos;) {
    if (done != match) segments.push_back({done, match, false});
    done = match + literal_.size();
    segments.push_back({match, done, true});
  }
  if (done != text.size()) segments.push_back({done, text.size(), false});
}

Replacement::Replacement(const TokenizerJson& json, const std::string& subject)
    : pattern_(json, subject),
      content_(component_value<std::string>(json, "content", subject)),
      subject_(subject) {}

void Replacement::apply(AlignedText& aligned, SearchBudget& budget) const {
  if (aligned.text.empty()) return;
  std::vector<TextSegment> segments;
  pattern_.find_all(aligned.text, budget, segments);
  std::string result;
  result.reserve(aligned.text.size());
  std::size_t first_end = 0;
  for (const TextSegment& segment : segments) {
    const std::size_t begin = result.size();
    KVC_CHECK(begin <= kMostBytes, "{}: replacing makes a text of more than 1 GiB", subject_);
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
