// SHA-256, for provenance.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace kvc {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  std::string hex();  // finishes; 64 lower-case digits

 private:
  void block(const std::byte* bytes);
  std::array<std::uint32_t, 8> state_;
  std::array<std::byte, 64> buffer_;
  std::uint64_t length_ = 0;
};

std::string sha256_hex(std::string_view text);
std::string sha256_hex_of_file(const std::filesystem::path& path);

}  // namespace kvc
