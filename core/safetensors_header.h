// Rules of a safetensors header, shared by reading and writing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace kvc {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxRank = 8;
inline constexpr std::size_t kMaxNameBytes = 512;

// Bytes of a tensor; Error (starting with `subject`) when they overflow or do not end on a byte.
std::uint64_t tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape,
                           std::string_view subject);
// Refuses names that are empty, too long or hold control characters.
void check_tensor_name(const std::string& name, std::string_view subject);

}  // namespace kvc
