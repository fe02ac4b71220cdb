// The RULER records that NVIDIA's kvpress evaluates, with its prompts and scores: a context is compressed without its
// question, which is read through the compressed cache. Records are never shortened.
#include <algorithm>

#include "core/error.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"

namespace kvc {
namespace {

// An output as it is scored: on one line, without control characters.
std::string one_line(std::string text) {
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](char c) { return static_cast<unsigned char>(c) < 0x20; }),
             text.end());
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

template <double (*score)(const std::string&, const TaskQuestion&)>
double of_one_line(const std::string& output, const TaskQuestion& question) {
  return score(one_line(output), question);
}

TaskSample kvpress_sample(const KvpressRecord& record) {
  return {.context = record.context,
          .questions = {{.text = record.question,
                         .answer_prefix = "\n" + record.answer_prefix,
                         .answers = record.answers}},
          .begins_with_bos = true};
}

Task kvpress_task(std::string_view suite, std::vector<KvpressRecord> records) {
  const KvpressRecord& first = records.front();
  const bool asks_documents = first.task.substr(0, first.task.find('_')) == "qa";
  Task task{.name = fmt::format("{}/{}", suite, first.task),
            .max_new_tokens = first.max_new_tokens,
            .make = {},
            .score = asks_documents ? of_one_line<match_any> : of_one_line<match_all>,
            .questions_after = true,
            .num_samples = static_cast<std::int64_t>(records.size()),
            .fixed_prompts = true};
  task.make = [records = std::move(records)](const TaskDraw& draw) {
    return kvpress_sample(records[static_cast<std::size_t>(draw.index)]);
  };
  return task;
}

}  // namespace

std::vector<Task> kvpress_tasks(std::string_view name, const TaskInputs& inputs) {
  std::vector<std::vector<KvpressRecord>> by_task;
  for (const KvpressRecord& record : inputs.kvpress) {
    auto same = std::find_if(by_task.begin(), by_task.end(), [&](const auto& records) {
      return records.front().task == record.task;
    });
    if (same == by_task.end()) {
      same = by_task.insert(by_task.end(), std::vector<KvpressRecord>{});
    } else {
      KVC_CHECK(record.max_new_tokens == same->front().max_new_tokens,
                "{}: \"max_new_tokens\" is {}, but {} in {}; a task has one number, so make them "
                "equal or name another \"task\"",
                record.place, record.max_new_tokens, same->front().max_new_tokens,
                same->front().place);
    }
    same->push_back(record);
  }
  std::vector<Task> tasks;
  for (std::vector<KvpressRecord>& records : by_task) {
    tasks.push_back(kvpress_task(name, std::move(records)));
  }
  return tasks;
}

}  // namespace kvc
