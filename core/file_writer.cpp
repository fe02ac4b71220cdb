#include "core/file_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace kvc {

FileDescriptor::~FileDescriptor() { close(); }

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : value_(std::exchange(other.value_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(value_, other.value_);
  return *this;
}

bool FileDescriptor::is_named(const std::filesystem::path& path) const {
  struct stat by_path {
  }, by_descriptor{};
  return ::lstat(path.c_str(), &by_path) == 0 && ::fstat(value_, &by_descriptor) == 0 &&
         by_path.st_dev == by_descriptor.st_dev && by_path.st_ino == by_descriptor.st_ino;
}

int FileDescriptor::close() {
  const int value = std::exchange(value_, -1);
  return value < 0 ? 0 : ::close(value);
}

FileWriter::FileWriter(std::filesystem::path path)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666)) {
  KVC_CHECK(file_.is_open(), "{}: cannot be created: {}", path_.string(), std::strerror(errno));
}

FileWriter::~FileWriter() {
  if (file_.is_open()) {
    ::unlink(path_.c_str());
  }
}

void FileWriter::fail_writing(int error) const {
  const char* advice = error == ENOSPC || error == EDQUOT || error == EFBIG
                           ? "; free some space there or choose another output"
                           : "";
  fail("{}: writing failed after {} bytes: {}{}", path_.string(), written_, std::strerror(error),
       advice);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  constexpr std::size_t kMaxCall = std::size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), std::min(bytes.size(), kMaxCall));
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail_writing(errno);
    }
    written_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void FileWriter::finish() {
  if (::fsync(file_.get()) != 0) {
    fail_writing(errno);
  }
  if (file_.close() != 0) {
    const int error = errno;
    ::unlink(path_.c_str());
    fail_writing(error);
  }
}

void sync_path(const std::filesystem::path& path, bool is_directory) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (is_directory ? O_DIRECTORY : 0);
  FileDescriptor file(::open(path.c_str(), flags));
  KVC_CHECK(file.is_open(), "{}: cannot be opened to flush it: {}", path.string(),
            std::strerror(errno));
  KVC_CHECK(::fsync(file.get()) == 0, "{}: flushing to the disk failed: {}", path.string(),
            std::strerror(errno));
}

}  // namespace kvc
