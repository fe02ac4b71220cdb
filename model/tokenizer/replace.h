// Replace, which is a normalizer as well as a decoder.
#pragma once

#include <string>

#include "model/tokenizer/aligned_text.h"
#include "model/tokenizer/component.h"
#include "model/tokenizer/text_pattern.h"

namespace kvc {

class Replacement {
 public:
  Replacement(const TokenizerJson& json, const std::string& subject);
  void apply(AlignedText& aligned, SearchBudget& budget) const;

 private:
  TextPattern pattern_;
  std::string content_;
};

}  // namespace kvc
