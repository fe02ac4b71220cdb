#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "core/error.h"
#include "core/file_writer.h"

namespace kvc {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  KVC_CHECK(file.is_open(), "{}: cannot be opened: {}", path.string(), std::strerror(errno));
  struct stat status {};
  KVC_CHECK(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), "{}: not a regular file",
            path.string());
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    return;  // an empty mapping is an error to mmap
  }
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  KVC_CHECK(address != MAP_FAILED, "{}: cannot be mapped: {}", path.string(), std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void release_pages(std::span<const std::byte> mapped) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + mapped.size()) / page * page;
  if (first < last) {
    ::madvise(const_cast<std::byte*>(mapped.data() + (first - begin)), last - first, MADV_DONTNEED);
  }
}

}  // namespace kvc
