// Replace with a literal pattern, which is a normalizer as well as a decoder.
#pragma once

#include <string>
#include <string_view>

#include "model/tokenizer/component.h"

namespace kvc {

struct Replacement {
  std::string pattern;  // not empty
  std::string content;

  std::string apply(std::string_view text) const;  // leftmost matches, none overlapping
};

Replacement read_replacement(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
