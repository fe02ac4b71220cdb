// Frequent words of RULER (arXiv 2404.06654): made-up words whose counts fall as the square of their rank; the three most
// frequent ones are asked for. Dots take the first rank.
#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "core/error.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"

namespace kvc {
namespace {

constexpr double kZeta2 = 1.6449340668482264;  // sum of 1 / rank^2
constexpr std::size_t kNumAsked = 3;
constexpr std::size_t kFewestOccurrences = 80;  // so that the fourth word is rarer than the third

std::string made_up_word(TaskRandom& random) {
  std::string word;
  for (int syllable = 0; syllable < 3; ++syllable) {
    word += "bcdfghjklmnprstvwz"[random.below(18)];
    word += "aeiou"[random.below(5)];
  }
  return word;
}

// Occurrences of the words of ranks 1, 2, ..., together `total`.
std::vector<std::size_t> zipf_counts(std::size_t total) {
  std::vector<std::size_t> counts;
  for (std::size_t rank = 1;; ++rank) {
    const auto count = static_cast<std::size_t>(static_cast<double>(total) /
                                                (kZeta2 * static_cast<double>(rank * rank)));
    if (count == 0) {
      break;
    }
    counts.push_back(count);
  }
  // What rounding left over is words that occur once.
  const std::size_t sum = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  counts.insert(counts.end(), total - sum, 1);
  return counts;
}

TaskSample frequent_words_sample(std::size_t total, TaskRandom random) {
  const std::vector<std::size_t> counts = zipf_counts(total);
  TaskRandom of_words(random.below(1u << 30));
  std::set<std::string> used;
  std::vector<std::string> answers, list(counts.front(), "...");
  for (std::size_t rank = 1; rank < counts.size(); ++rank) {
    std::string word = made_up_word(of_words);
    while (!used.insert(word).second) {
      word = made_up_word(of_words);
    }
    list.insert(list.end(), counts[rank], word);
    if (rank <= kNumAsked) {
      answers.push_back(word);
    }
  }
  random.shuffle(list);
  return {
      .context =
          "The text below is made of coded words. Find out which of them occur most "
          "often.\n" +
          fmt::format("{}", fmt::join(list, " ")) + "\n",
      .questions = {{.text = "Question: which 3 words, dots aside, occur most often in the coded "
                             "text?",
                     .answer_prefix = "\nAnswer: the 3 words that occur most often are:",
                     .answers = answers}}};
}

}  // namespace

std::vector<Task> frequent_words_tasks(std::string_view name, const TaskInputs&) {
  const auto make = [](const TaskDraw& draw) {
    return largest_that_fits(draw, {.least = kFewestOccurrences}, frequent_words_sample);
  };
  return {{.name = std::string(name), .max_new_tokens = 50, .make = make, .score = match_all}};
}

}  // namespace kvc
