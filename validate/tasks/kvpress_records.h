// Users' files of the RULER records that NVIDIA's kvpress evaluates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvc {

struct KvpressRecord {
  std::string task;                  // "niah_single_1"
  std::string context;               // is compressed
  std::string question;              // follows it
  std::string answer_prefix;         // the answer's beginning, which the model continues
  std::vector<std::string> answers;  // at least one
  std::int64_t max_new_tokens = 0;   // of the answer, at least 1
  std::string place;                 // "FILE:LINE", for errors
};

// A JSON object per line with "context", "question", "answer_prefix", "answer" (a list of texts), "task" and
// "max_new_tokens"; others are not read. Error naming `file` and the line.
std::vector<KvpressRecord> kvpress_records(std::string_view lines, const std::string& file);

}  // namespace kvc
