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
    }
    throw;
  }
}

void WorkDirectory::keep_for_resume() {
  keep_ = true;
  log_info(fmt::format("finished stages are kept in {}; run the same command again to resume",
                       path_.string()));
}

}  // namespace kvc
