// The hidden directory beside an output, where it is built.
#pragma once

#include <filesystem>

#include "core/file_writer.h"

namespace kvc {

// `<parent>/.<name>.partial` for the output `<parent>/<name>`, mode 0700, locked against other
// processes. Leftovers of a killed run are removed first. The destructor removes it with its
// contents.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::filesystem::path& output);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Gives the directory the mode that a plain mkdir would have given it.
  void make_public() const;
  // Call after the directory was moved to its final name: nothing is removed later.
  void release() { owned_ = false; }
  // Call after another directory was exchanged into path(): it is removed later.
  void adopt_exchanged();

 private:
  bool try_create();

  std::filesystem::path path_;
  FileDescriptor directory_;
  unsigned public_mode_ = 0;
  bool owned_ = false;
};

}  // namespace kvc
