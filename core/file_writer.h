// One new file, written from front to back; every error is reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace kvc {

// A POSIX file descriptor, closed when destroyed.
class FileDescriptor {
 public:
  explicit FileDescriptor(int value = -1) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return value_; }
  bool is_open() const { return value_ >= 0; }
  // Whether `path` still names it, not a link to it; another process may have renamed or removed it.
  bool is_named(const std::filesystem::path& path) const;
  // Closes now; the result of close(2).
  int close();

 private:
  int value_;
};

// Created exclusively; links are not followed. An unfinished file is removed.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void finish();  // fsync and close

 private:
  [[noreturn]] void fail_writing(int error) const;
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t written_ = 0;
};

// Flushes a file or directory to the disk.
void sync_path(const std::filesystem::path& path, bool is_directory);

}  // namespace kvc
