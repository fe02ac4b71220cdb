// Where a run keeps its finished stages.
#pragma once

#include <filesystem>
#include <functional>

namespace kvc {

// A directory that the user did not name goes away with the run, unless the run was interrupted and can be resumed.
class WorkDirectory {
 public:
  // `requested`, or if empty `.<name of out>.work` beside `out`. Error if it cannot be created.
  WorkDirectory(const std::filesystem::path& requested, const std::filesystem::path& out);
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // An interruption of `stages` keeps the directory.
  void run(const std::function<void()>& stages);
  void keep_for_resume();

 private:
  std::filesystem::path path_;
  bool temporary_, keep_ = false;
};

}  // namespace kvc
