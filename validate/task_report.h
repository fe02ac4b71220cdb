// The tasks' part of a validation report: for a file, a terminal and a page.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "validate/validate.h"

namespace kvc {

Json tasks_json(const std::vector<TaskScores>& tasks);  // null without tasks
// Tables; empty without tasks.
std::string tasks_text(const ValidationReport& report);
std::string tasks_html(const ValidationReport& report);
// Sentences, one for each task and length whose ratio the original's score of 0 leaves undecided, under options.min_ratio.
std::vector<std::string> undecided_tasks(const TaskOptions& options,
                                         const std::vector<TaskScores>& tasks);
// Sentences, one for each task and length whose ratio is below options.min_ratio.
std::vector<std::string> missed_tasks(const TaskOptions& options,
                                      const std::vector<TaskScores>& tasks);

}  // namespace kvc
