// Where large tensors lie, and how many bytes they take.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvc {

// Memory for weights: as at::empty, but in huge pages where the system has them, one tensor after the other: reading
// them once per token is what generation spends its time on, and is a fifth faster so.
at::Tensor empty_weight(at::IntArrayRef sizes, at::ScalarType type);

// A tensor in an unnamed temporary file: its pages can leave memory.
// Uninitialised, any dtype. Disk space is reserved first (Error if there is not enough); the file
// has no name, so nothing is ever left behind. `directory` empty: the system's temporary directory.
at::Tensor make_spilled_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                               const std::filesystem::path& directory);

// The same if it takes more than `memory_bytes`; otherwise an uninitialised tensor in memory.
at::Tensor make_scratch_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                               const std::filesystem::path& directory,
                               std::int64_t memory_bytes = std::int64_t{1} << 30);

// 0 if undefined.
inline std::int64_t tensor_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

}  // namespace kvc
