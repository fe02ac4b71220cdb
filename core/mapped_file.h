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

// Gives the memory behind a part of a mapped file back once it has been read; reading it again works
// and reads the file again. What a whole pass over a large checkpoint holds stays small this way.
void release_pages(std::span<const std::byte> mapped);

}  // namespace kvc
