// Files of records: a JSON object per line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace kvc {

struct JsonLine {
  Json json;            // an object
  std::string subject;  // "FILE:LINE", for errors
};

// Lines that are not blank. Error naming `file` and the line that is no object.
std::vector<JsonLine> json_lines(std::string_view lines, const std::string& file);

// Error naming `subject` if a member of the list is no text.
std::vector<std::string> texts_of(const Json& list, const std::string& subject);

}  // namespace kvc
