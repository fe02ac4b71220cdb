// Seeded random tensors and golden files.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvc::testing {

// Standard normal float32 values.
at::Tensor random_normal(const std::vector<std::int64_t>& shape, std::uint64_t seed);
// `num_sequences` lists of `seq_len` uniform token ids.
std::vector<std::vector<std::int64_t>> random_ids(std::int64_t num_sequences, std::int64_t seq_len,
                                                  std::int64_t vocab_size, std::uint64_t seed);
// One tensor of a safetensors file, in its own type (F64, F32, BF16, F16, I64 or I32).
at::Tensor read_tensor(const std::filesystem::path& file, const std::string& name);

}  // namespace kvc::testing
