// The results of a run of tasks: JSONL, a line per sample, under its final name only when complete. A run that was
// interrupted leaves `<parent>/.<name>.partial`, which the same run continues.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/file_writer.h"
#include "core/json.h"

namespace kvc {

class TaskResults {
 public:
  // `run` identifies the run; every line has it as "run". No file if `path` is empty. Error if `path` exists, if
  // another process writes it, and if what was left is of another run or damaged: `force` replaces all of these.
  TaskResults(std::filesystem::path path, std::string run, bool force);
  ~TaskResults();  // without a line, nothing is left
  TaskResults(const TaskResults&) = delete;
  TaskResults& operator=(const TaskResults&) = delete;

  const std::string& run() const { return run_; }
  const std::vector<Json>& lines() const { return lines_; }
  const std::filesystem::path& partial() const { return partial_; }  // empty: kept nowhere
  void keep_first(std::size_t count);                                // drops the lines behind
  void append(const std::vector<Json>& lines);
  void commit();

 private:
  void read_left(bool force);
  void write_at_end(const std::string& text);

  std::filesystem::path path_, partial_;
  std::string run_;
  bool force_;
  FileDescriptor file_;
  std::vector<Json> lines_;
  std::vector<std::size_t> ends_;  // bytes of the file up to the end of each line
};

}  // namespace kvc
