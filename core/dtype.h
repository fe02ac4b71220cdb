// Element types of tensors on disk, as safetensors spells them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvc {

// In the order in which the safetensors writer sorts tensors.
enum class Dtype : std::uint8_t {
  kU64,
  kI64,
  kF64,
  kC64,
  kF32,
  kU32,
  kI32,
  kBF16,
  kF16,
  kU16,
  kI16,
  kF8E5M2FNUZ,
  kF8E4M3FNUZ,
  kF8E8M0,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kF6E3M2,
  kF6E2M3,
  kF4,
  kBool,
};

int bits_per_element(Dtype dtype);
std::string_view dtype_name(Dtype dtype);  // "BF16"
std::optional<Dtype> parse_dtype(std::string_view safetensors_name);

}  // namespace kvc
