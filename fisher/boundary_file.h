// The residual stream at every layer boundary, in an unnamed temporary file: memory does not grow with
// the number of layers, and nothing is left behind whatever happens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>

namespace kvc {

class BoundaryFile {
 public:
  // Reserves the space; Error when the disk has not enough.
  BoundaryFile(int num_boundaries, std::int64_t num_tokens, std::int64_t hidden_size,
               const std::filesystem::path& directory);
  ~BoundaryFile();
  BoundaryFile(const BoundaryFile&) = delete;
  BoundaryFile& operator=(const BoundaryFile&) = delete;

  // Rows from token `first` on. rows [num_tokens of a sequence, hidden_size], of any device and float type
  void write(int boundary, std::int64_t first, const at::Tensor& rows);
  // float32, on the CPU.
  at::Tensor read(int boundary, std::int64_t first, std::int64_t count) const;

 private:
  std::int64_t offset(int boundary, std::int64_t first) const;
  std::int64_t num_tokens_, hidden_size_;
  std::filesystem::path directory_;
  int file_ = -1;
};

}  // namespace kvc
