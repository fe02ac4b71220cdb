#include "core/scratch_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace kvc {

ScratchDirectory::ScratchDirectory(const std::filesystem::path& output)
    : path_(output.parent_path() / fmt::format(".{}.partial", output.filename().string())) {
  // A few rounds: other processes may clear the same leftover at the same moment.
  for (int round = 0; round < 100; ++round) {
    if (try_create()) {
      return;
    }
  }
  fail("{}: cannot be created; other processes keep replacing it", path_.string());
}

bool ScratchDirectory::try_create() {
  const bool created = ::mkdir(path_.c_str(), 0777) == 0;
  KVC_CHECK(created || errno == EEXIST, "{}: cannot be created: {}", path_.string(),
            std::strerror(errno));
  FileDescriptor directory(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.is_open() && errno == ENOENT) {
    return false;
  }
  KVC_CHECK(directory.is_open(), "{}: cannot be opened: {}; remove it by hand", path_.string(),
            std::strerror(errno));
  if (::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    KVC_CHECK(errno == EWOULDBLOCK, "{}: cannot be locked: {}", path_.string(),
              std::strerror(errno));
    fail("{}: another process is writing this output; wait for it or choose another output",
         path_.string());
  }
  if (!directory.is_named(path_)) {
    return false;
  }
  if (!created) {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    KVC_CHECK(!error, "{}: left by an interrupted run and cannot be removed: {}", path_.string(),
              error.message());
    return false;
  }
  struct stat status {};
  KVC_CHECK(::fstat(directory.get(), &status) == 0 && ::fchmod(directory.get(), 0700) == 0,
            "{}: cannot be made private: {}", path_.string(), std::strerror(errno));
  public_mode_ = status.st_mode & 07777;
  directory_ = std::move(directory);
  owned_ = true;
  return true;
}

ScratchDirectory::~ScratchDirectory() {
  if (owned_ && directory_.is_named(path_)) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

void ScratchDirectory::adopt_exchanged() {
  FileDescriptor old(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  // Without the lock another process has already found it and is removing it.
  owned_ = old.is_open() && ::flock(old.get(), LOCK_EX | LOCK_NB) == 0;
  directory_ = std::move(old);
}

void ScratchDirectory::make_public() const {
  KVC_CHECK(::fchmod(directory_.get(), public_mode_) == 0, "{}: cannot set its mode: {}",
            path_.string(), std::strerror(errno));
}

}  // namespace kvc
