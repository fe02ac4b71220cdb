// A tensor in an unnamed temporary file: its pages can leave memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvc {

// Uninitialised, any dtype. Disk space is reserved first (Error if there is not enough); the file
// has no name, so nothing is ever left behind. `directory` empty: the system's temporary directory.
at::Tensor make_spilled_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                               const std::filesystem::path& directory);

// The same where it takes more than `memory_bytes`, else in memory.
at::Tensor make_scratch_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                               const std::filesystem::path& directory,
                               std::int64_t memory_bytes = std::int64_t{1} << 30);

}  // namespace kvc
