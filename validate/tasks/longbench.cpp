// LongBench (arXiv 2308.14508): records of users' files, a task for each dataset, with the answers' lengths and metrics that
// LongBench gives the dataset. Prompts are worded for this program. A context that is too long loses its middle.
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "model/tokenizer/utf8.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/task_kinds.h"
#include "validate/tasks/text_metrics.h"

namespace kvc {
namespace {

template <double (*metric)(const std::string&, const std::string&)>
double best_answer(const std::string& output, const TaskQuestion& question) {
  double best = 0;
  for (const std::string& answer : question.answers) {
    best = std::max(best, metric(output, answer));
  }
  return best;
}

double best_class(const std::string& output, const TaskQuestion& question) {
  double best = 0;
  for (const std::string& answer : question.answers) {
    best = std::max(best, class_match(output, answer, question.classes));
  }
  return best;
}

double paragraph_match(const std::string& output, const std::string& answer) {
  return number_match(output, first_number(answer));
}

// What follows an answer's first line is the next example of a few-shot prompt.
template <double (*score)(const std::string&, const TaskQuestion&)>
double of_first_line(const std::string& output, const TaskQuestion& question) {
  return score(first_line(output), question);
}

using Score = double (*)(const std::string&, const TaskQuestion&);

struct Dataset {
  std::string_view name;
  std::int64_t max_new_tokens;
  Score score;
  std::string_view before, after;    // the context; {} is the record's input
  std::string_view answer_prefix{};  // behind `after`
};

constexpr std::string_view kArticle =
    "Answer a question about the text below in as few words as possible, without any "
    "explanation.\n\n";
constexpr std::string_view kPassages =
    "Answer a question from the passages below in a few words, without any explanation.\n\n";
constexpr std::string_view kAsked = "\n\nQuestion: {}", kAnswer = "\nAnswer:";
constexpr std::string_view kReport = "Write a summary of the text below.\n\n";
constexpr std::string_view kSummary = "\n\nSummary:";

constexpr Score kF1 = best_answer<word_f1>, kRougeL = best_answer<rouge_l>;
constexpr Score kNumber = best_answer<number_match>, kParagraph = best_answer<paragraph_match>;
constexpr Score kCode = best_answer<edit_similarity>;

constexpr Dataset kDatasets[] = {
    {"narrativeqa", 128, kF1, kArticle, kAsked, kAnswer},
    {"qasper", 128, kF1, kArticle, kAsked, kAnswer},
    {"multifieldqa_en", 64, kF1, kArticle, kAsked, kAnswer},
    {"hotpotqa", 32, kF1, kPassages, kAsked, kAnswer},
    {"2wikimqa", 32, kF1, kPassages, kAsked, kAnswer},
    {"musique", 32, kF1, kPassages, kAsked, kAnswer},
    {"gov_report", 512, kRougeL, kReport, "", kSummary},
    {"qmsum", 512, kRougeL, "Answer a question about the transcript of a meeting below.\n\n",
     kAsked, kAnswer},
    {"multi_news", 512, kRougeL, kReport, "", kSummary},
    {"trec", 64, of_first_line<best_class>,
     "Name the kind of the last question, as the examples do.\n\n", "\n{}"},
    {"triviaqa", 32, of_first_line<kF1>,
     "Answer the last question from its passage, as the examples do.\n\n", "\n\n{}"},
    {"samsum", 128, of_first_line<kRougeL>, "Sum up the last conversation, as the examples do.\n\n",
     "\n\n{}"},
    {"lsht", 64, of_first_line<best_class>,
     "Name the kind of the last piece of news, as the examples do.\n\n", "\n{}"},
    {"passage_count", 32, kNumber,
     "Some of the paragraphs below are copies of others. Count those that are different.\n\n", "",
     "\n\nThe number of different paragraphs is:"},
    {"passage_retrieval_en", 32, kParagraph,
     "Find out which of the paragraphs below an abstract sums up.\n\n",
     "\n\nAbstract: {}\n\nAnswer as in \"Paragraph 7\".", " Answer:"},
    {"passage_retrieval_zh", 32, kParagraph,
     "Find out which of the paragraphs below an abstract sums up.\n\n",
     "\n\nAbstract: {}\n\nAnswer as in \"段落7\".", " Answer:"},
    {"lcc", 64, kCode, "Write the next line of this code.\n\n", "", "Next line:\n"},
    {"repobench-p", 64, kCode, "Write the next line of this code.\n\n", "{}", "Next line:\n"},
};

// Their metrics cut Chinese text into words by a dictionary, which this program has not.
constexpr std::string_view kChinese[] = {"multifieldqa_zh", "dureader", "vcsum"};

const Dataset& dataset_row(const std::string& name) {
  const auto* row = std::find_if(std::begin(kDatasets), std::end(kDatasets),
                                 [&](const Dataset& known) { return known.name == name; });
  KVC_CHECK(std::find(std::begin(kChinese), std::end(kChinese), name) == std::end(kChinese),
            "--tasks longbench: the metric of '{}' needs the words of Chinese text, which are not "
            "supported; leave its records out",
            name);
  std::vector<std::string_view> names;
  for (const Dataset& known : kDatasets) {
    names.push_back(known.name);
  }
  KVC_CHECK(row != std::end(kDatasets), "--tasks longbench: unknown dataset '{}'; known: {}", name,
            fmt::join(names, ", "));
  return *row;
}

// Both ends of the text, together at most `size` bytes.
std::string without_middle(const std::string& text, std::size_t size) {
  if (size >= text.size()) {
    return text;
  }
  std::size_t head = size / 2, tail = text.size() - (size - size / 2);
  const auto inside = [&](std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (head > 0 && inside(head)) {
    --head;
  }
  while (inside(tail)) {
    ++tail;
  }
  return text.substr(0, head) + text.substr(tail);
}

TaskSample longbench_sample(const Dataset& dataset, const LongBenchRecord& record,
                            std::size_t context_bytes) {
  std::string after(dataset.after);
  const std::size_t place = after.find("{}");
  if (place != std::string::npos) {
    after.replace(place, 2, record.input);
  }
  return {.context = std::string(dataset.before) + without_middle(record.context, context_bytes),
          .questions = {{.text = after,
                         .answer_prefix = std::string(dataset.answer_prefix),
                         .answers = record.answers,
                         .classes = record.classes}}};
}

Task longbench_task(const Dataset& dataset, std::string_view suite,
                    std::vector<LongBenchRecord> records) {
  const auto count = static_cast<std::int64_t>(records.size());
  return {.name = fmt::format("{}/{}", suite, dataset.name),
          .max_new_tokens = dataset.max_new_tokens,
          .make =
              [&dataset, records = std::move(records)](const TaskDraw& draw) {
                const auto& record = records[static_cast<std::size_t>(draw.index)];
                return largest_that_fits(draw, {.most = record.context.size(), .often_all = true},
                                         [&](std::size_t context_bytes, const TaskRandom&) {
                                           return longbench_sample(dataset, record, context_bytes);
                                         });
              },
          .score = dataset.score,
          .num_samples = count};
}

}  // namespace

std::vector<Task> longbench_tasks(std::string_view name, const TaskInputs& inputs) {
  std::vector<Task> tasks;
  std::vector<const Dataset*> done;
  for (const LongBenchRecord& first : inputs.records) {
    const Dataset& dataset = dataset_row(first.dataset);
    if (std::find(done.begin(), done.end(), &dataset) != done.end()) {
      continue;
    }
    done.push_back(&dataset);
    std::vector<LongBenchRecord> records;
    for (const LongBenchRecord& record : inputs.records) {
      if (record.dataset == first.dataset) {
        records.push_back(record);
      }
    }
    if (dataset.score == Score{of_first_line<best_class>}) {
      for (const LongBenchRecord& record : records) {
        KVC_CHECK(!record.classes.empty(),
                  "--tasks longbench: a record of '{}' has no \"all_classes\", which its metric "
                  "needs",
                  record.dataset);
      }
    }
    tasks.push_back(longbench_task(dataset, name, std::move(records)));
  }
  return tasks;
}

}  // namespace kvc
