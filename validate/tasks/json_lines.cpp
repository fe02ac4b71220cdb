#include "validate/tasks/json_lines.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace kvc {

std::vector<JsonLine> json_lines(std::string_view lines, const std::string& file) {
  std::vector<JsonLine> result;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    std::string subject = fmt::format("{}:{}", file, number);
    Json json = parse_json(line, subject);
    KVC_CHECK(json.is_object(), "{}: not a JSON object", subject);
    result.push_back({std::move(json), std::move(subject)});
  }
  return result;
}

std::vector<std::string> texts_of(const Json& list, const std::string& subject) {
  std::vector<std::string> texts;
  for (const Json& value : list) {
    KVC_CHECK(value.is_string(), "{} must be texts, found {}", subject, excerpt(value));
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

}  // namespace kvc
