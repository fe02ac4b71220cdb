// Common words of RULER (arXiv 2404.06654): a numbered list of words, ten of which occur more often than all others and are
// asked for.
#include "core/error.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"
#include "validate/tasks/text_words.h"

namespace kvc {
namespace {

constexpr std::size_t kNumCommon = 10;

struct WordCounts {
  std::size_t common = 0, other = 0;  // occurrences of each word
};

// RULER's: shorter lists have no room for more.
WordCounts word_counts(std::int64_t length) {
  return length < 4096 ? WordCounts{6, 1} : WordCounts{30, 3};
}

std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, words[i]);
  }
  return text;
}

TaskSample word_list_sample(std::size_t num_others, const WordCounts& counts, WordSupply& words,
                            TaskRandom& random) {
  const std::vector<std::string> common = words.apart(kNumCommon);
  std::vector<std::string> list;
  for (const std::string& word : common) {
    list.insert(list.end(), counts.common, word);
  }
  for (std::size_t i = 0; i < num_others; ++i) {
    list.insert(list.end(), counts.other, words.next());
  }
  random.shuffle(list);
  return {.context =
              "Some words of this numbered list occur more often than others. Keep in mind "
              "those that occur most often.\n" +
              numbered(list) + "\n",
          .questions = {{.text = "Question: which 10 words occur most often in the list?",
                         .answer_prefix = "\nAnswer: the 10 words that occur most often are:",
                         .answers = common}}};
}

// A worked example comes first, as in RULER.
TaskSample common_words_sample(std::size_t num_others, const WordCounts& counts,
                               TaskRandom random) {
  WordSupply words(TaskRandom(random.below(1u << 30)));
  TaskRandom of_example(random.below(1u << 30));
  const TaskSample example = word_list_sample(kNumCommon, {3, 1}, words, of_example);
  TaskSample sample = word_list_sample(num_others, counts, words, random);
  const TaskQuestion& asked = example.questions.front();
  sample.context =
      example.context + plain_text(asked) + " " + numbered(asked.answers) + "\n\n" + sample.context;
  return sample;
}

}  // namespace

std::vector<Task> common_words_tasks(std::string_view name, const TaskInputs&) {
  const auto make = [](const TaskDraw& draw) {
    const WordCounts counts = word_counts(draw.length);
    return largest_that_fits(draw, {.least = kNumCommon},
                             [&](std::size_t num_others, TaskRandom random) {
                               return common_words_sample(num_others, counts, std::move(random));
                             });
  };
  return {{.name = std::string(name), .max_new_tokens = 120, .make = make, .score = match_all}};
}

}  // namespace kvc
