#include "core/settings_text.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace kvc {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<TextSetting> parse_settings(std::string_view subject, std::string_view text,
                                        const std::vector<std::string_view>& known) {
  std::vector<TextSetting> settings;
  for (const std::string_view setting : split(text, ',')) {
    const std::size_t equals = setting.find('=');
    const std::string_view key = setting.substr(0, equals);
    KVC_CHECK_USAGE(
        equals != std::string_view::npos && std::ranges::find(known, key) != known.end(),
        "{}: unknown setting '{}'; {}", subject, setting,
        known.empty() ? "it has none"
                      : fmt::format("expected key=value of {}", fmt::join(known, ", ")));
    KVC_CHECK_USAGE(std::ranges::find(settings, key, &TextSetting::key) == settings.end(),
                    "{}: '{}' is given twice; leave one out", subject, key);
    settings.push_back({key, setting.substr(equals + 1)});
  }
  return settings;
}

}  // namespace kvc
