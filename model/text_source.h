// The text inside a .txt or .jsonl file, checked.
#pragma once

#include <filesystem>
#include <string>

namespace kvc {

struct TextSource {
  std::string name;  // for messages
  std::string text;  // UTF-8, not only white space
  std::string hash;  // SHA-256 of the file's bytes
};

// .txt as it is (without a byte order mark); of .jsonl the "text" fields, with an empty line
// between records. Throws Error naming the file, and for a bad record its line.
TextSource read_text_source(const std::filesystem::path& path);

}  // namespace kvc
