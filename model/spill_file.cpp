#include "model/tensor_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/interrupt.h"

namespace kvc {
namespace {

// A named file that is removed at the end of the scope.
class TemporaryFile {
 public:
  TemporaryFile(const std::filesystem::path& directory, std::int64_t bytes)
      : path_((directory / "kvconvert-spill-XXXXXX").string()), file_(::mkstemp(path_.data())) {
    KVC_CHECK(file_ >= 0, "{}: cannot create a temporary file: {}", directory.string(),
              std::strerror(errno));
    int error = EINTR;
    while (error == EINTR && !is_interrupted()) {
      error = ::posix_fallocate(file_, 0, bytes);
    }
    if (error != 0) {
      close();
      check_interrupt();
      fail(
          "{}: cannot reserve {} bytes for hidden states: {}; choose another directory or fewer "
          "tokens",
          directory.string(), bytes, std::strerror(error));
    }
  }
  ~TemporaryFile() { close(); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  void close() {
    if (file_ >= 0) {
      ::unlink(path_.c_str());
      ::close(file_);
      file_ = -1;
    }
  }
  std::string path_;
  int file_;
};

}  // namespace

at::Tensor make_spilled_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                               const std::filesystem::path& directory) {
  const std::int64_t size = c10::multiply_integers(shape);
  const auto bytes = size * static_cast<std::int64_t>(c10::elementSize(dtype));
  const TemporaryFile file(directory.empty() ? std::filesystem::temp_directory_path() : directory,
                           bytes);
  return at::from_file(file.path(), /*shared=*/true, size, at::TensorOptions(dtype)).view(shape);
}

at::Tensor make_scratch_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                               const std::filesystem::path& directory, std::int64_t memory_bytes) {
  const auto bytes =
      c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(dtype));
  return bytes > memory_bytes ? make_spilled_tensor(shape, dtype, directory)
                              : at::empty(shape, dtype);
}

}  // namespace kvc
