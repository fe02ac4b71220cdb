// What the tests of files share: a fresh directory, errors as text, small safetensors files.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/testing/error_of.h"

namespace kvc {

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 fmt::format("kvc_{}_{}_{}", getpid(), test->test_suite_name(), test->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path file(const std::string& name) const { return directory_ / name; }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
};

inline void put(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A file's bytes: the length word, the header, then `data_bytes` zeros.
inline std::string safetensors_bytes(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  bytes += header;
  bytes.append(data_bytes, '\0');
  return bytes;
}

// A file that holds these tensors as F32 vectors of one zero each.
inline std::string zeros_file(const std::vector<std::string>& names) {
  std::string header = "{";
  std::size_t position = 0;
  for (const std::string& name : names) {
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})",
                          position == 0 ? "" : ",", name, position, position + 4);
    position += 4;
  }
  header += "}";
  return safetensors_bytes(header, position);
}

}  // namespace kvc
