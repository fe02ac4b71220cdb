// Flags with enumerators as values; parsed after CLI11, so a wrong word lists the right ones.
#pragma once

#include <string>

#include "core/error.h"

namespace kvc {

// A wrong word in a flag is a usage error. An empty word keeps the default or the preset's value.
template <typename Parsed, typename Value>
void parse_word(const char* flag, const std::string& word, Parsed (*parse)(const std::string&),
                Value& value) {
  if (word.empty()) {
    return;
  }
  try {
    value = parse(word);
  } catch (const Error& error) {
    fail_usage("{}: {}", flag, error.what());
  }
}

}  // namespace kvc
