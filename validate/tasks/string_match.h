// Scores of answers that are to be found in the output, from 0 to 100. Upper and lower case of any script are equal.
#pragma once

#include <string>

#include "validate/tasks/task.h"

namespace kvc {

// The share of the answers that the output has: RULER's score, but for questions over documents.
double match_all(const std::string& output, const TaskQuestion& question);
// 100 if the output has any of the answers: RULER's score for questions over documents.
double match_any(const std::string& output, const TaskQuestion& question);
// The share of the only answer's words that the output begins with.
double leading_words(const std::string& output, const TaskQuestion& question);

}  // namespace kvc
