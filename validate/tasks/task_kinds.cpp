#include "validate/tasks/task_kinds.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

constexpr auto kNoFile = std::nullopt;
constexpr TaskKind kKinds[] = {
    {"passkey", "", kNoFile, false, passkey_tasks},
    {"recall", "", TaskFile::kProse, false, recall_tasks},
    {"copying", "", kNoFile, false, copying_tasks},
    {"niah_single_1", "ruler", kNoFile, false, niah_tasks},
    {"niah_single_2", "ruler", TaskFile::kProse, false, niah_tasks},
    {"niah_single_3", "ruler", TaskFile::kProse, false, niah_tasks},
    {"niah_multikey_1", "ruler", TaskFile::kProse, false, niah_tasks},
    {"niah_multikey_2", "ruler", kNoFile, false, niah_tasks},
    {"niah_multikey_3", "ruler", kNoFile, false, niah_tasks},
    {"niah_multivalue", "ruler", TaskFile::kProse, false, niah_tasks},
    {"niah_multiquery", "ruler", TaskFile::kProse, false, niah_tasks},
    {"vt", "ruler", kNoFile, false, variable_tracking_tasks},
    {"cwe", "ruler", kNoFile, false, common_words_tasks},
    {"fwe", "ruler", kNoFile, false, frequent_words_tasks},
    {"qa_1", "ruler", TaskFile::kSquad, true, document_qa_tasks},
    {"qa_2", "ruler", TaskFile::kHotpot, true, document_qa_tasks},
    {"longbench", "", TaskFile::kLongBench, true, longbench_tasks},
    {"kvpress", "", TaskFile::kKvpress, true, kvpress_tasks},
};

std::string known_names() {
  std::vector<std::string_view> names;
  for (const TaskKind& kind : kKinds) {
    if (!kind.suite.empty() && std::find(names.begin(), names.end(), kind.suite) == names.end()) {
      names.push_back(kind.suite);
    }
    names.push_back(kind.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// In the order of the table.
std::vector<const TaskKind*> chosen_kinds(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    KVC_CHECK_USAGE(std::any_of(std::begin(kKinds), std::end(kKinds),
                                [&](const TaskKind& kind) {
                                  return !name.empty() && (name == kind.name || name == kind.suite);
                                }),
                    "--tasks: unknown task '{}'; known: {}", name, known_names());
  }
  std::vector<const TaskKind*> chosen;
  for (const TaskKind& kind : kKinds) {
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          return name == kind.name || name == kind.suite;
        })) {
      chosen.push_back(&kind);
    }
  }
  return chosen;
}

bool has_file(const TaskInputs& inputs, TaskFile wanted) {
  return std::any_of(inputs.files.begin(), inputs.files.end(),
                     [&](const auto& file) { return file.first == wanted; });
}

bool lacks_file(const TaskKind& kind, const TaskInputs& inputs) {
  return kind.needs_file && !has_file(inputs, *kind.reads);
}

// ": --tasks a,b", those that can run; empty if none can.
std::string others_to_name(const std::vector<const TaskKind*>& kinds, const TaskInputs& inputs) {
  std::vector<std::string_view> names;
  for (const TaskKind* kind : kinds) {
    if (!lacks_file(*kind, inputs)) {
      names.push_back(kind->name);
    }
  }
  return names.empty() ? "" : fmt::format(": --tasks {}", fmt::join(names, ","));
}

}  // namespace

std::vector<Task> choose_tasks(const std::vector<std::string>& names, const TaskInputs& inputs) {
  const std::vector<const TaskKind*> kinds = chosen_kinds(names);
  for (const auto& [what, path] : inputs.files) {
    KVC_CHECK_USAGE(std::any_of(kinds.begin(), kinds.end(),
                                [&](const TaskKind* kind) { return kind->reads == what; }),
                    "--task-text {}: has {}, which no task of --tasks reads; leave it out", path,
                    describe(what));
  }
  std::vector<Task> tasks;
  for (const TaskKind* kind : kinds) {
    KVC_CHECK(!lacks_file(*kind, inputs),
              "--tasks {}: reads {}, which do not come with the program; give them with "
              "--task-text FILE, or leave the task out{}",
              kind->name, describe(*kind->reads), others_to_name(kinds, inputs));
    for (Task& task : kind->tasks(kind->name, inputs)) {
      tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

}  // namespace kvc
