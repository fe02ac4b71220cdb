// A file mapped for reading.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace kvc {

// Private and read-only. The file must not be truncated while it is mapped; this project never
// writes into an existing file.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // links are followed; regular files only
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Gives the memory of a part of a mapped file back after it was read; another access reads the file
// again. A pass over a large checkpoint thus takes little memory.
void release_pages(std::span<const std::byte> mapped);

}  // namespace kvc
