#include "model/text.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/hash.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kRecordSeparator = "\n\n";

std::string read_bytes(const std::filesystem::path& path) {
  KVC_CHECK(std::filesystem::exists(path), "{}: no such file", path.string());
  KVC_CHECK(std::filesystem::is_regular_file(path), "{}: {}, expected a text file", path.string(),
            std::filesystem::is_directory(path) ? "a directory" : "no regular file");
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  KVC_CHECK(file, "{}: cannot be read", path.string());
  return bytes;
}

void check_text(std::string_view bytes, const std::string& name) {
  const std::size_t zero = bytes.find('\0');
  KVC_CHECK(zero == std::string_view::npos,
            "{}: byte {} is zero, so this is a binary file; expected UTF-8 text", name, zero);
  const auto invalid = first_invalid_utf8(bytes);
  KVC_CHECK(!invalid, "{}: byte {} is not UTF-8; convert the text to UTF-8", name,
            invalid.value_or(0));
}

bool is_blank(std::string_view text) {
  for (const Character& character : Characters(text)) {
    if (!is_white_space(character.value)) return false;
  }
  return true;
}

std::string record_text(std::string_view line, const std::string& name, std::size_t number) {
  const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
  KVC_CHECK(record.is_object(), "{}:{}: not a JSON object; expected {{\"text\": \"...\"}}", name,
            number);
  const auto text = record.find("text");
  KVC_CHECK(text != record.end() && text->is_string(),
            "{}:{}: no \"text\" field that is a string; expected {{\"text\": \"...\"}}", name,
            number);
  return text->get<std::string>();
}

std::string join_records(std::string_view lines, const std::string& name) {
  std::string text;
  for (std::size_t begin = 0, number = 1; begin < lines.size(); ++number) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    if (is_blank(line)) continue;
    if (!text.empty()) text += kRecordSeparator;
    text += record_text(line, name, number);
  }
  return text;
}

}  // namespace

TextSource read_text_source(const std::filesystem::path& path) {
  TextSource source{path.string(), read_bytes(path), {}};
  source.hash = sha256_hex(source.text);
  check_text(source.text, source.name);
  if (source.text.starts_with(kByteOrderMark)) source.text.erase(0, kByteOrderMark.size());
  if (path.extension() == ".jsonl") source.text = join_records(source.text, source.name);
  KVC_CHECK(!is_blank(source.text), "{}: holds no text; expected more than white space",
            source.name);
  return source;
}

}  // namespace kvc
