#include "validate/tasks/text_metrics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"
#include "validate/tasks/text_words.h"

namespace kvc {
namespace {

constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

// In lower case, without ASCII punctuation and then without articles, which end at any character that is none of words
// (Python's \b, to which marks are none).
std::vector<std::string> plain_words(const std::string& text) {
  std::string kept = lower_case(text);
  std::erase_if(kept, [](char c) { return kPunctuation.find(c) != std::string_view::npos; });
  std::string plain, run;  // run: characters of words
  const auto end_run = [&] {
    plain += run == "a" || run == "an" || run == "the" ? " " : run;
    run.clear();
  };
  for (const Character& character : Characters(kept)) {
    const CharacterClass kind = character_class(character.value);
    if (kind == CharacterClass::kLetter || kind == CharacterClass::kNumber) {
      run += character.bytes;
    } else {
      end_run();
      plain += character.bytes;
    }
  }
  end_run();
  return split_words(plain);
}

double f1(double common, double in_output, double in_answer) {
  return common == 0 ? 0 : 100 * 2 * common / (in_output + in_answer);
}

// Lengths of the longest common subsequences of all beginnings: [first.size() + 1][second.size() + 1].
template <typename Items>
std::vector<std::vector<std::size_t>> common_lengths(const Items& first, const Items& second) {
  std::vector<std::vector<std::size_t>> lengths(first.size() + 1,
                                                std::vector<std::size_t>(second.size() + 1, 0));
  for (std::size_t i = 1; i <= first.size(); ++i) {
    for (std::size_t j = 1; j <= second.size(); ++j) {
      lengths[i][j] = first[i - 1] == second[j - 1]
                          ? lengths[i - 1][j - 1] + 1
                          : std::max(lengths[i - 1][j], lengths[i][j - 1]);
    }
  }
  return lengths;
}

// The words of a longest common subsequence, from the end; where two are as long, that which leaves `second` first.
void add_common_words(const std::vector<std::string>& first, const std::vector<std::string>& second,
                      std::set<std::string>& words) {
  const auto lengths = common_lengths(first, second);
  for (std::size_t i = first.size(), j = second.size(); i > 0 && j > 0;) {
    if (first[i - 1] == second[j - 1]) {
      words.insert(first[i - 1]);
      --i, --j;
    } else if (lengths[i - 1][j] > lengths[i][j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

// White space alone, as behind a last period, is a sentence of one empty word, as the published code has it.
std::vector<std::vector<std::string>> dotted_sentences(const std::string& text) {
  std::vector<std::vector<std::string>> sentences;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    sentences.push_back(split_words(text.substr(begin, end - begin)));
    if (sentences.back().empty() && end > begin) {
      sentences.back().emplace_back();
    }
    begin = end + 1;
  }
  return sentences;
}

std::set<std::string> word_set(const std::string& text) {
  std::set<std::string> words;
  for (const auto& sentence : dotted_sentences(text)) {
    words.insert(sentence.begin(), sentence.end());
  }
  return words;
}

// Numbers of decimal digits of any script (Python's \d).
std::vector<std::string> numbers_of(const std::string& given) {
  static const std::vector<CodePointRange> digits = property_ranges("Nd", false).value();
  const std::string text = replace_invalid_utf8(given);
  std::vector<std::string> numbers;
  bool open = false;
  for (const Character& character : Characters(text)) {
    const auto after = std::upper_bound(
        digits.begin(), digits.end(), character.value,
        [](char32_t value, const CodePointRange& range) { return value < range.first; });
    const bool digit = after != digits.begin() && character.value <= std::prev(after)->last;
    if (digit && !open) {
      numbers.emplace_back();
    }
    if (digit) {
      numbers.back() += character.bytes;
    }
    open = digit;
  }
  return numbers;
}

std::string without_first_breaks(const std::string& text) {
  const std::size_t begin = text.find_first_not_of('\n');
  return begin == std::string::npos ? "" : text.substr(begin);
}

std::string first_code_line(const std::string& output) {
  std::string rest = without_first_breaks(output);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string line = rest.substr(0, end);
    if (line.find('`') == std::string::npos && line.find('#') == std::string::npos &&
        line.find("//") == std::string::npos) {
      return line;
    }
    rest = rest.substr(std::min(end + 1, rest.size()));
  }
  return "";
}

}  // namespace

double word_f1(const std::string& output, const std::string& answer) {
  const std::vector<std::string> found = plain_words(output), wanted = plain_words(answer);
  std::map<std::string, std::size_t> counts;
  for (const std::string& word : wanted) {
    ++counts[word];
  }
  std::size_t common = 0;
  for (const std::string& word : found) {
    const auto count = counts.find(word);
    if (count != counts.end() && count->second > 0) {
      --count->second;
      ++common;
    }
  }
  return f1(static_cast<double>(common), static_cast<double>(found.size()),
            static_cast<double>(wanted.size()));
}

double rouge_l(const std::string& output, const std::string& answer) {
  std::set<std::string> common;
  for (const auto& wanted : dotted_sentences(answer)) {
    for (const auto& found : dotted_sentences(output)) {
      add_common_words(wanted, found, common);
    }
  }
  return f1(static_cast<double>(common.size()), static_cast<double>(word_set(output).size()),
            static_cast<double>(word_set(answer).size()));
}

// The published code removes classes from the list that it goes through, so that it skips the one behind a removed class.
double class_match(const std::string& output, const std::string& answer,
                   const std::vector<std::string>& classes) {
  std::vector<std::string> named;
  std::copy_if(classes.begin(), classes.end(), std::back_inserter(named),
               [&](const std::string& name) { return output.find(name) != std::string::npos; });
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i] != answer && answer.find(named[i]) != std::string::npos) {
      named.erase(std::find(named.begin(), named.end(), named[i]));
    }
  }
  const bool right = std::find(named.begin(), named.end(), answer) != named.end();
  return right ? 100.0 / static_cast<double>(named.size()) : 0;
}

double number_match(const std::string& output, const std::string& number) {
  const std::vector<std::string> numbers = numbers_of(output);
  return numbers.empty()
             ? 0
             : 100.0 * static_cast<double>(std::count(numbers.begin(), numbers.end(), number)) /
                   static_cast<double>(numbers.size());
}

double edit_similarity(const std::string& output, const std::string& answer) {
  const std::u32string found = to_code_points(replace_invalid_utf8(first_code_line(output)));
  const std::u32string wanted = to_code_points(replace_invalid_utf8(answer));
  if (found.empty() && wanted.empty()) {
    return 100;
  }
  const std::size_t common = common_lengths(found, wanted).back().back();
  // In this order, which decides where half a percent falls.
  const double ratio =
      2.0 * static_cast<double>(common) / static_cast<double>(found.size() + wanted.size());
  return std::nearbyint(100 * ratio);
}

std::string first_line(const std::string& output) {
  const std::string text = without_first_breaks(output);
  return text.substr(0, text.find('\n'));
}

std::string first_number(const std::string& text) {
  const std::vector<std::string> numbers = numbers_of(text);
  return numbers.empty() ? "" : numbers.front();
}

}  // namespace kvc
