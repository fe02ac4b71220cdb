// Questions over documents of RULER (arXiv 2404.06654): those that answer a question lie among others of the same files.
#include <algorithm>

#include "core/error.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"

namespace kvc {
namespace {

// Documents of a question in the order in which a growing prompt takes them; those nearby in random order, as in RULER.
std::vector<std::size_t> documents_of(const DocumentQuestion& question, std::size_t num_documents,
                                      TaskRandom& random) {
  std::vector<std::size_t> order = question.evidence, nearby = question.nearby;
  random.shuffle(nearby);
  order.insert(order.end(), nearby.begin(), nearby.end());
  std::vector<bool> taken(num_documents, false);
  for (const std::size_t document : order) {
    taken[document] = true;
  }
  for (const std::size_t document : random.permutation(num_documents)) {
    if (!taken[document]) {
      order.push_back(document);
    }
  }
  return order;
}

TaskSample documents_sample(const DocumentQuestions& set, const DocumentQuestion& question,
                            std::size_t num_documents, TaskRandom random) {
  std::vector<std::size_t> shown = documents_of(question, set.documents.size(), random);
  shown.resize(num_documents);
  random.shuffle(shown);
  TaskSample sample{
      .context =
          "Some of the documents below answer a question that follows them. The answer is a "
          "few words, without any explanation.\n\n",
      .questions = {{.text = "Question: " + question.text,
                     .answer_prefix = "\nAnswer:",
                     .answers = question.answers}}};
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const auto& evidence = question.evidence;
    if (std::find(evidence.begin(), evidence.end(), shown[i]) != evidence.end()) {
      begins.push_back(sample.context.size());
    }
    sample.context += fmt::format("Document {}:\n{}\n\n", i + 1, set.documents[shown[i]]);
  }
  for (const std::size_t begin : begins) {
    sample.depths.push_back(static_cast<double>(begin) /
                            static_cast<double>(sample.context.size()));
  }
  return sample;
}

}  // namespace

std::vector<Task> document_qa_tasks(std::string_view name, const TaskInputs& inputs) {
  const auto set = name == "qa_1" ? inputs.squad : inputs.hotpot;
  // A run of the same seed asks the same questions at every length.
  const auto make = [set](const TaskDraw& draw) {
    const std::size_t count = set->questions.size();
    const std::size_t chosen =
        TaskRandom(draw.seed).permutation(count)[static_cast<std::size_t>(draw.index)];
    const DocumentQuestion& question = set->questions[chosen];
    return largest_that_fits(
        draw, {.least = question.evidence.size(), .most = set->documents.size()},
        [&](std::size_t num_documents, TaskRandom random) {
          return documents_sample(*set, question, num_documents, std::move(random));
        });
  };
  return {{.name = std::string(name),
           .max_new_tokens = 32,
           .make = make,
           .score = match_any,
           .num_samples = static_cast<std::int64_t>(set->questions.size())}};
}

}  // namespace kvc
