// Flags whose words are enumerators; parsed after CLI11 so that a wrong word lists the right ones.
#pragma once

#include <string>

#include "core/error.h"

namespace kvc {

// A wrong word in a flag is an error of usage, whatever it is in a file. An empty one leaves the default,
// or the preset's.
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
