// Variable tracking of RULER (arXiv 2404.06654): a value is passed on from variable to variable, in assignments hidden among
// sentences without content; all variables that have it are asked for.
#include <fmt/ranges.h>

#include <set>

#include "core/error.h"
#include "validate/tasks/haystack.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"

namespace kvc {
namespace {

constexpr std::size_t kHops = 4;              // assignments behind the first one
constexpr std::size_t kExampleSentences = 8;  // around the worked example's assignments

std::vector<std::string> variable_names(TaskRandom& random) {
  std::set<std::string> seen;
  std::vector<std::string> names;
  while (names.size() < kHops + 1) {
    std::string name;
    for (int i = 0; i < 5; ++i) {
      name += static_cast<char>('A' + random.below(26));
    }
    if (seen.insert(name).second) {
      names.push_back(name);
    }
  }
  return names;
}

TaskSample chain_sample(std::size_t num_sentences, TaskRandom& random) {
  const std::vector<std::string> names = variable_names(random);
  const std::string value = random.digits(5);
  std::vector<std::string> needles = {fmt::format("VAR {} = {}", names[0], value)};
  for (std::size_t hop = 1; hop <= kHops; ++hop) {
    needles.push_back(fmt::format("VAR {} = VAR {}", names[hop], names[hop - 1]));
  }
  const HiddenNeedles hidden = hide(noise_sentences(num_sentences), needles, "\n", random);
  const std::string introduction =
      "Follow the assignments of variables that are hidden in the text below.\n\n";
  const std::string context = introduction + hidden.text + "\n";
  return {
      .context = context,
      .questions = {{.text = fmt::format("Question: which variables have the value {}, directly "
                                         "or through others? There are {} of them.",
                                         value, kHops + 1),
                     .answer_prefix =
                         fmt::format("\nAnswer: the variables with the value {} are:", value),
                     .answers = names}},
      .depths = hidden.depths(introduction.size(), context)};
}

// A worked example comes first, as in RULER.
TaskSample tracking_sample(std::size_t num_sentences, TaskRandom random) {
  const TaskSample example = chain_sample(kExampleSentences, random);
  TaskSample sample = chain_sample(num_sentences, random);
  const TaskQuestion& asked = example.questions.front();
  const std::string shown = fmt::format("{}{} {}\n\n", example.context, plain_text(asked),
                                        fmt::join(asked.answers, ", "));
  const double before = static_cast<double>(shown.size());
  const double whole = before + static_cast<double>(sample.context.size());
  for (double& depth : sample.depths) {
    depth = (before + depth * static_cast<double>(sample.context.size())) / whole;
  }
  sample.context = shown + sample.context;
  return sample;
}

}  // namespace

std::vector<Task> variable_tracking_tasks(std::string_view name, const TaskInputs&) {
  return {
      {.name = std::string(name),
       .max_new_tokens = 30,
       .make = [](const TaskDraw& draw) { return largest_that_fits(draw, {}, tracking_sample); },
       .score = match_all}};
}

}  // namespace kvc
