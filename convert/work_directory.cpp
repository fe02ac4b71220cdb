#include "convert/work_directory.h"

#include <system_error>

#include "core/error.h"
#include "core/progress.h"

namespace kvc {

namespace fs = std::filesystem;

WorkDirectory::WorkDirectory(const fs::path& requested, const fs::path& out)
    : path_(requested.empty() ? out.parent_path() / fmt::format(".{}.work", out.filename().string())
                              : requested),
      temporary_(requested.empty()) {
  std::error_code error;
  fs::create_directories(path_, error);
  KVC_CHECK(!error, "{}: cannot create the work directory: {}; choose another with --work",
            path_.string(), error.message());
  had_stages_ = has_finished_stages();
}

WorkDirectory::~WorkDirectory() {
  if (temporary_ && !keep_) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
}

void WorkDirectory::run(const std::function<void()>& stages) {
  try {
    stages();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted) {
      keep_for_resume();
    } else {
      keep_what_costs();
    }
    throw;
  } catch (...) {
    keep_what_costs();
    throw;
  }
}

// Names that begin with a dot are half written, and tokens are read in a moment.
bool WorkDirectory::has_finished_stages() const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && name != "tokens.h5") {
      return true;
    }
  }
  return false;
}

void WorkDirectory::keep_what_costs() {
  constexpr double kLongSeconds = 60;
  if (temporary_ && has_finished_stages() &&
      (had_stages_ || seconds_since(start_) > kLongSeconds)) {
    keep_ = true;
    log_info(fmt::format(
        "finished stages are kept in {}; the next run to the same output uses those that fit it",
        path_.string()));
  }
}

void WorkDirectory::keep_for_resume() {
  keep_ = true;
  log_info(fmt::format("finished stages are kept in {}; run the same command again to resume",
                       path_.string()));
}

}  // namespace kvc
