// The tasks that --tasks knows. Another one is a function here, its file, and its row in task_kinds.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "validate/tasks/task.h"
#include "validate/tasks/task_inputs.h"

namespace kvc {

struct TaskKind {
  std::string_view name;
  std::string_view suite;         // a name for all tasks that have it; empty: none
  std::optional<TaskFile> reads;  // kind of --task-text that it reads
  bool needs_file = false;        // there is no built-in text
  std::vector<Task> (*tasks)(std::string_view name, const TaskInputs& inputs);
};

std::vector<Task> common_words_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> copying_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> document_qa_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> frequent_words_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> kvpress_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> longbench_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> niah_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> passkey_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> recall_tasks(std::string_view name, const TaskInputs& inputs);
std::vector<Task> variable_tracking_tasks(std::string_view name, const TaskInputs& inputs);

// The tasks of these names and suites, each once. UsageError for an unknown name and for a file that no task reads; Error
// naming the task that lacks its file.
std::vector<Task> choose_tasks(const std::vector<std::string>& names, const TaskInputs& inputs);

}  // namespace kvc
