// Outputs appear under their final name only when complete: they are built beside it and renamed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvc {

// Refuses (Error) an existing `path` unless `force`. Call before any work is done.
void check_output(const std::filesystem::path& path, bool force);

// A directory under construction: `<parent>/.<name>.partial`, mode 0700, locked against a second
// process. A leftover of a killed run is removed first. The destructor removes it unless committed.
class OutputDirectory {
 public:
  OutputDirectory(std::filesystem::path final_path, bool force);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::filesystem::path& path() const { return partial_; }  // write files here
  // fsyncs files and directory, moves an existing final directory aside (force), renames, fsyncs the
  // parent and removes what was moved aside.
  void commit();

 private:
  std::filesystem::path final_, partial_;
  int lock_ = -1;
  bool force_, committed_ = false;
};

// The same for one file: `<parent>/.<name>.partial`.
class OutputFile {
 public:
  OutputFile(std::filesystem::path final_path, bool force);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return partial_; }
  void commit();

 private:
  std::filesystem::path final_, partial_;
  bool force_, committed_ = false;
};

// Creates `path` exclusively with these bytes and fsyncs it; Error on any failure.
void write_file(const std::filesystem::path& path, std::string_view bytes);
// A small text file as a whole; Error when absent, not regular, or above `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);
// write_file through an OutputFile.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes, bool force);

}  // namespace kvc
