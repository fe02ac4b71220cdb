// What tasks read from users' files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "validate/tasks/haystack.h"
#include "validate/tasks/kvpress_records.h"
#include "validate/tasks/longbench_records.h"
#include "validate/tasks/question_files.h"

namespace kvc {

// Kinds of --task-text.
enum class TaskFile { kProse, kSquad, kHotpot, kLongBench, kKvpress };
std::string describe(TaskFile kind);  // "questions of SQuAD's layout (.json)"

struct TaskInputs {
  std::shared_ptr<const Prose> prose;  // the built-in evaluation text if no file has any
  std::shared_ptr<const DocumentQuestions> squad, hotpot;
  std::vector<LongBenchRecord> records{};
  std::vector<KvpressRecord> kvpress{};
  std::vector<std::string> hashes{};                      // SHA-256 of each file
  std::vector<std::pair<TaskFile, std::string>> files{};  // kind and path of each
};

// A file is of the kind that its name and its first record or key say. Error naming the file if it is of none.
TaskInputs read_task_inputs(const std::vector<std::filesystem::path>& files);

}  // namespace kvc
