// Texts as words, and the words that tasks are made of.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "validate/tasks/task_random.h"

namespace kvc {

// As Python's lower(), but for a capital sigma at the end of a word; invalid UTF-8 becomes U+FFFD, here and in split_words().
std::string lower_case(std::string_view text);
// What white space of Unicode separates, as Python's split().
std::vector<std::string> split_words(std::string_view text);
// Runs of letters and digits, in lower case. Bytes beyond ASCII count as letters.
std::vector<std::string> letter_words(std::string_view text);

// The words of 4 to 9 lower-case letters in the built-in texts, sorted.
const std::vector<std::string>& common_vocabulary();

// Words in random order, none twice and none that contains a word drawn as `apart`. When the built-in texts have no
// more, two of them make one.
class WordSupply {
 public:
  explicit WordSupply(TaskRandom random);
  std::string next();
  // `count` words that no later word contains, and that contain each other neither.
  std::vector<std::string> apart(std::size_t count);

 private:
  bool is_apart(const std::string& word) const;
  TaskRandom random_;
  std::vector<std::size_t> order_;
  std::size_t used_ = 0;
  std::vector<std::string> apart_;
};

}  // namespace kvc
