// Settings of a command-line option: "key=value,key=value".
#pragma once

#include <string_view>
#include <vector>

namespace kvc {

struct TextSetting {
  std::string_view key, value;  // of the text that was parsed
};

// The settings in their order, at least one. UsageError for one that is not "key=value" of a known key, or
// that is given twice. subject: "--policy snapkv", for messages.
std::vector<TextSetting> parse_settings(std::string_view subject, std::string_view text,
                                        const std::vector<std::string_view>& known);

// The parts between separators, at least one.
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace kvc
