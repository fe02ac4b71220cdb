// Outputs appear under their final name only when complete: they are built beside it and renamed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/scratch_directory.h"

namespace kvc {

// `path` in normal form, "out/" like "out".
std::filesystem::path output_path(const std::filesystem::path& path);
// True when `path` is `directory` or inside it, symbolic links resolved.
bool is_within(const std::filesystem::path& path, const std::filesystem::path& directory);
// Refuses (Error) an output that is, contains or is inside an input: inputs are never written to,
// even with --force. `flag` names the output.
void check_apart(const std::filesystem::path& output, const std::filesystem::path& input,
                 const char* flag = "--out");
// Refuses (Error) an existing `path` unless `force`, and a parent directory that does not exist.
// Call before any work is done.
void check_output(const std::filesystem::path& path, bool force);

inline constexpr std::string_view kOutputMark = ".kvconvert";

// A directory under construction: `<parent>/.<name>.partial`, mode 0700, locked against a second
// process. A leftover of a killed run is removed first. The destructor removes it unless committed.
// An existing final directory (force) is removed only if it is empty or an output of these programs: a converted checkpoint by its
// config.json, others by the empty file kOutputMark. Any other is kept as `<name>.replaced`, with a warning.
class OutputDirectory {
 public:
  OutputDirectory(std::filesystem::path final_path, bool force);

  const std::filesystem::path& path() const { return scratch_.path(); }  // write files here
  // fsyncs files and directories and renames, unless a signal has arrived (check_interrupt). An existing final directory (force) is exchanged
  // atomically with the new one and then removed or kept, so a complete one always exists.
  void commit();

 private:
  std::filesystem::path final_;
  ScratchDirectory scratch_;
  bool force_;
};

// The same for one file: `<parent>/.<name>.partial/<name>`.
class OutputFile {
 public:
  OutputFile(std::filesystem::path final_path, bool force);

  const std::filesystem::path& path() const { return partial_; }  // does not exist yet: create it
  void commit();

 private:
  std::filesystem::path final_;
  ScratchDirectory scratch_;
  std::filesystem::path partial_;
  bool force_;
};

// Creates `path` exclusively with these bytes and fsyncs it; Error on any failure.
void write_file(const std::filesystem::path& path, std::string_view bytes);
// A small text file as a whole; Error when absent, not regular, or above `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);
// write_file through an OutputFile.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes, bool force);

}  // namespace kvc
