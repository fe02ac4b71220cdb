// Long texts, and things hidden in them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "validate/tasks/task_random.h"

namespace kvc {

// Prose as words, of which any number can be read from any place on.
class Prose {
 public:
  explicit Prose(std::string_view text);  // Error if it has no word

  // A word that a sentence begins with.
  std::size_t random_start(TaskRandom& random) const;
  // `count` words from word `start` on, as sentences. The text begins again where it ends.
  std::vector<std::string> sentences(std::size_t start, std::size_t count) const;

 private:
  std::vector<std::string> words_;
  std::vector<std::size_t> starts_;  // of sentences
};

// That many sentences without content: the same few over and over.
std::vector<std::string> noise_sentences(std::size_t count);

struct HiddenNeedles {
  std::string text;
  std::vector<std::size_t> begins;  // of each needle in the text, in bytes

  // Places in a context that begins with `before` bytes and the text: 0 its start, 1 its end.
  std::vector<double> depths(std::size_t before, const std::string& context) const;
};
// Puts needles, in their order, at random places before, between and behind the pieces; at different ones if there are enough.
HiddenNeedles hide(const std::vector<std::string>& pieces, const std::vector<std::string>& needles,
                   std::string_view separator, TaskRandom& random);

}  // namespace kvc
