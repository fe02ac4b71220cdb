// Users' files of LongBench records (arXiv 2308.14508).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvc {

struct LongBenchRecord {
  std::string dataset;  // "hotpotqa"; the suffix of LongBench-E, "_e", is left out
  std::string context, input;
  std::vector<std::string> answers, classes;
};

// A JSON object per line with "input", "context", "answers", "dataset" and, for classification, "all_classes". Error
// naming `file` and the line.
std::vector<LongBenchRecord> longbench_records(std::string_view lines, const std::string& file);

}  // namespace kvc
