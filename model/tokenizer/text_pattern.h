// {"String": ...} or {"Regex": ...}: what Split and Replace look for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/aligned_text.h"
#include "model/tokenizer/component.h"
#include "model/tokenizer/pieces.h"
#include "model/tokenizer/regex.h"

namespace kvc {

class TextPattern {
 public:
  // Reads the key "pattern".
  TextPattern(const TokenizerJson& json, const std::string& subject);

  // Appends the segments of `text`, which is not empty.
  void find_all(std::string_view text, SearchBudget& budget,
                std::vector<TextSegment>& segments) const;

 private:
  std::string literal_;
  std::shared_ptr<const Regex> regex_;  // empty: the literal is looked for
};

// Replace, which is a normalizer as well as a decoder.
class Replacement {
 public:
  Replacement(const TokenizerJson& json, const std::string& subject);
  void apply(AlignedText& aligned, SearchBudget& budget) const;

 private:
  TextPattern pattern_;
  std::string content_, subject_;
};

}  // namespace kvc
