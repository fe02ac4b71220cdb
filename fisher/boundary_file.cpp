#include "fisher/boundary_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/arithmetic.h"
#include "core/error.h"

namespace kvc {

BoundaryFile::BoundaryFile(int num_boundaries, std::int64_t num_tokens, std::int64_t hidden_size,
                           const std::filesystem::path& directory)
    : num_tokens_(num_tokens), hidden_size_(hidden_size), directory_(directory) {
  const std::string subject = directory.string();
  const std::int64_t row_bytes =
      checked_mul<std::int64_t>(hidden_size, static_cast<std::int64_t>(sizeof(float)), subject);
  const std::int64_t bytes = checked_mul<std::int64_t>(
      checked_mul<std::int64_t>(num_tokens, row_bytes, subject), num_boundaries, subject);
  std::string name = (directory / "boundaries-XXXXXX").string();
  file_ = mkostemp(name.data(), O_CLOEXEC);
  KVC_CHECK(file_ >= 0, "{}: cannot create a temporary file: {}", subject, std::strerror(errno));
  unlink(name.c_str());
  const int error = posix_fallocate(file_, 0, bytes);
  if (error != 0) {
    ::close(file_);
    fail("{}: cannot reserve {} bytes for hidden states: {}; use fewer or shorter sequences",
         subject, bytes, std::strerror(error));
  }
}

BoundaryFile::~BoundaryFile() { ::close(file_); }

std::int64_t BoundaryFile::offset(int boundary, std::int64_t first) const {
  return (boundary * num_tokens_ + first) * hidden_size_ * static_cast<std::int64_t>(sizeof(float));
}

void BoundaryFile::write(int boundary, std::int64_t first, const at::Tensor& rows) {
  const at::Tensor values = rows.to(at::kCPU, at::kFloat).contiguous();
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  std::int64_t at = offset(boundary, first);
  for (std::size_t left = values.nbytes(); left > 0;) {
    const ssize_t done = pwrite(file_, bytes, left, at);
    KVC_CHECK(done > 0, "{}: cannot write hidden states: {}", directory_.string(),
              std::strerror(errno));
    bytes += done;
    at += done;
    left -= static_cast<std::size_t>(done);
  }
}

at::Tensor BoundaryFile::read(int boundary, std::int64_t first, std::int64_t count) const {
  at::Tensor rows = at::empty({count, hidden_size_}, at::kFloat);
  auto* bytes = static_cast<char*>(rows.mutable_data_ptr());
  std::int64_t at = offset(boundary, first);
  for (std::size_t left = rows.nbytes(); left > 0;) {
    const ssize_t done = pread(file_, bytes, left, at);
    KVC_CHECK(done > 0, "{}: cannot read hidden states back: {}", directory_.string(),
              std::strerror(errno));
    bytes += done;
    at += done;
    left -= static_cast<std::size_t>(done);
  }
  return rows;
}

}  // namespace kvc
