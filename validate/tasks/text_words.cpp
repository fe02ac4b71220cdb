#include "validate/tasks/text_words.h"

#include <algorithm>
#include <set>

#include "model/text.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {
namespace {

constexpr std::size_t kShortestWord = 4, kLongestWord = 9;

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) {
  return is_lower(c) || is_upper(c) || (c >= '0' && c <= '9') ||
         static_cast<unsigned char>(c) >= 128;
}

// Maximal runs of characters that `inside` accepts.
template <typename Inside>
std::vector<std::string> runs_of(std::string_view text, const Inside& inside) {
  std::vector<std::string> runs;
  bool open = false;
  for (const char c : text) {
    if (inside(c)) {
      if (!open) {
        runs.emplace_back();
      }
      runs.back() += c;
    }
    open = inside(c);
  }
  return runs;
}

std::string lower_ascii(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return lower;
}

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

void add_vocabulary(std::string_view text, std::set<std::string>& words) {
  for (const std::string& word : runs_of(text, is_letter)) {
    if (word.size() >= kShortestWord && word.size() <= kLongestWord &&
        std::all_of(word.begin(), word.end(), is_lower)) {
      words.insert(word);
    }
  }
}

}  // namespace

std::string lower_case(std::string_view given) {
  const std::string text = replace_invalid_utf8(given);
  std::string lower;
  for (const Character& character : Characters(text)) {
    append_lowercase(lower, character.value);
  }
  return lower;
}

std::vector<std::string> split_words(std::string_view given) {
  const std::string text = replace_invalid_utf8(given);
  std::vector<std::string> words;
  bool open = false;
  for (const Character& character : Characters(text)) {
    const bool inside = !is_space(character.value);
    if (inside && !open) {
      words.emplace_back();
    }
    if (inside) {
      words.back() += character.bytes;
    }
    open = inside;
  }
  return words;
}

std::vector<std::string> letter_words(std::string_view text) {
  return runs_of(lower_ascii(text), is_letter);
}

const std::vector<std::string>& common_vocabulary() {
  static const std::vector<std::string> vocabulary = [] {
    std::set<std::string> words;
    add_vocabulary(builtin_calibration_text(), words);
    add_vocabulary(builtin_evaluation_text(), words);
    return std::vector<std::string>(words.begin(), words.end());
  }();
  return vocabulary;
}

WordSupply::WordSupply(TaskRandom random)
    : random_(std::move(random)), order_(random_.permutation(common_vocabulary().size())) {}

bool WordSupply::is_apart(const std::string& word) const {
  return std::none_of(apart_.begin(), apart_.end(), [&](const std::string& other) {
    return word.find(other) != std::string::npos;
  });
}

std::string WordSupply::next() {
  const std::vector<std::string>& words = common_vocabulary();
  for (;;) {
    const std::size_t pairs = used_ / words.size();
    const std::string& word = words[order_[used_ % words.size()]];
    ++used_;
    // Every round pairs a word with another partner.
    const std::string made =
        pairs == 0 ? word : word + words[order_[(used_ + pairs) % words.size()]];
    if (is_apart(made)) {
      return made;
    }
  }
}

std::vector<std::string> WordSupply::apart(std::size_t count) {
  std::vector<std::string> words;
  while (words.size() < count) {
    const std::string word = next();
    const bool contains_word = std::any_of(apart_.begin(), apart_.end(), [&](const auto& other) {
      return other.find(word) != std::string::npos;
    });
    if (!contains_word) {
      apart_.push_back(word);
      words.push_back(word);
    }
  }
  return words;
}

}  // namespace kvc
