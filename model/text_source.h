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

// A .txt without its byte order mark; the "text" fields of a .jsonl, separated by empty lines.
// Throws Error naming the file, and the line of a bad record.
TextSource read_text_source(const std::filesystem::path& path);

}  // namespace kvc
