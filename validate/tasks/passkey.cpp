// Passkey retrieval: a number among sentences without content (arXiv 2305.16300).
#include "core/error.h"
#include "validate/tasks/haystack.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"

namespace kvc {
namespace {

TaskSample passkey_sample(std::size_t num_sentences, TaskRandom random) {
  const std::string key = random.digits(5);
  const std::string needle =
      fmt::format("The pass key is {}. Keep it in mind. {} is the pass key.", key, key);
  const HiddenNeedles hidden = hide(noise_sentences(num_sentences), {needle}, " ", random);
  const std::string introduction =
      "A pass key is hidden in the text below. Find it and keep it in mind: you will be asked for "
      "it.\n";
  const std::string context = introduction + hidden.text + "\n";
  return {.context = context,
          .questions = {{.text = "What is the pass key?",
                         .answer_prefix = " The pass key is",
                         .answers = {key}}},
          .depths = hidden.depths(introduction.size(), context)};
}

}  // namespace

std::vector<Task> passkey_tasks(std::string_view name, const TaskInputs&) {
  return {{.name = std::string(name),
           .max_new_tokens = 16,
           .make = [](const TaskDraw& draw) { return largest_that_fits(draw, {}, passkey_sample); },
           .score = match_all}};
}

}  // namespace kvc
