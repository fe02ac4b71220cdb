// Copying: random words, which are repeated up to some place and continued there. Only attention to their first mention tells
// what follows.
#include <fmt/ranges.h>

#include "core/error.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"
#include "validate/tasks/text_words.h"

namespace kvc {
namespace {

constexpr std::size_t kNumCopies = 8;                     // questions
constexpr std::size_t kGivenWords = 6, kCopiedWords = 4;  // repeated at least; to be continued by

// The first `count` words.
std::string joined(const std::vector<std::string>& words, std::size_t count) {
  const auto end = words.begin() + static_cast<std::ptrdiff_t>(count);
  return fmt::format("{}", fmt::join(words.begin(), end, " "));
}

TaskSample copying_sample(std::size_t num_words, TaskRandom random) {
  WordSupply supply(TaskRandom(random.below(1u << 30)));
  std::vector<std::string> words;
  while (words.size() < num_words) {
    words.push_back(supply.next());
  }
  TaskSample sample{.context = joined(words, num_words) + "\n", .questions = {}};
  const std::size_t places = num_words - kGivenWords - kCopiedWords + 1;
  for (std::size_t i = 0; i < kNumCopies; ++i) {
    // One in every eighth of the text.
    const std::size_t share = (i << 20) + random.below(std::size_t{1} << 20);
    const std::size_t given = kGivenWords + places * share / (kNumCopies << 20);
    sample.questions.push_back(
        {.text = "",
         .answer_prefix = joined(words, given),
         .answers = {joined({words.begin() + static_cast<std::ptrdiff_t>(given), words.end()},
                            kCopiedWords)}});
    sample.depths.push_back(static_cast<double>(joined(words, given).size()) /
                            static_cast<double>(sample.context.size()));
  }
  return sample;
}

}  // namespace

std::vector<Task> copying_tasks(std::string_view name, const TaskInputs&) {
  const auto make = [](const TaskDraw& draw) {
    return largest_that_fits(draw, {.least = kGivenWords + kCopiedWords}, copying_sample);
  };
  return {{.name = std::string(name),
           .max_new_tokens = 24,
           .make = make,
           .score = leading_words,
           .questions_after = true}};
}

}  // namespace kvc
