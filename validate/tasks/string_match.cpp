#include "validate/tasks/string_match.h"

#include <algorithm>
#include <sstream>

#include "validate/tasks/text_words.h"

namespace kvc {
namespace {

std::size_t answers_found(const std::string& output, const TaskQuestion& question) {
  const std::string text = lower_case(output);
  return static_cast<std::size_t>(std::count_if(
      question.answers.begin(), question.answers.end(), [&](const std::string& answer) {
        return text.find(lower_case(answer)) != std::string::npos;
      }));
}

}  // namespace

double match_all(const std::string& output, const TaskQuestion& question) {
  return 100.0 * static_cast<double>(answers_found(output, question)) /
         static_cast<double>(question.answers.size());
}

double match_any(const std::string& output, const TaskQuestion& question) {
  return answers_found(output, question) > 0 ? 100.0 : 0.0;
}

double leading_words(const std::string& output, const TaskQuestion& question) {
  const std::vector<std::string> wanted = letter_words(question.answers.front());
  const std::vector<std::string> found = letter_words(output);
  std::size_t equal = 0;
  while (equal < std::min(wanted.size(), found.size()) && wanted[equal] == found[equal]) {
    ++equal;
  }
  return 100.0 * static_cast<double>(equal) / static_cast<double>(wanted.size());
}

}  // namespace kvc
