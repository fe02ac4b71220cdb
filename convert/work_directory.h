// Where a run keeps its finished stages.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>

namespace kvc {

// A directory that the user did not name goes away with the run, unless the run is interrupted, or fails and stages are lost that took
// more than a minute or that an earlier run had finished.
class WorkDirectory {
 public:
  // `requested`, or if empty `.<name of out>.work` beside `out`. Error if it cannot be created.
  WorkDirectory(const std::filesystem::path& requested, const std::filesystem::path& out);
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Runs `stages`, which may throw.
  void run(const std::function<void()>& stages);
  void keep_for_resume();

 private:
  bool has_finished_stages() const;
  void keep_what_costs();  // of a run that failed
  std::filesystem::path path_;
  bool temporary_, had_stages_ = false, keep_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvc
