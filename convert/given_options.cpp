#include "convert/given_options.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "core/shell_text.h"

namespace kvc {

std::vector<GivenOption> given_options(const CLI::App& app) {
  std::vector<GivenOption> given;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || !name.starts_with("--")) {
      continue;
    }
    const bool flag = option->get_expected_max() == 0;
    const bool off = flag && option->results().front() == "false";
    given.push_back({name, off ? "--no-" + name.substr(2) : name,
                     flag ? std::vector<std::string>() : option->results()});
  }
  return given;
}

std::string first_given(const CLI::App& app, const std::vector<Options>& kinds) {
  for (const Options& options : kinds) {
    for (const Option& option : options.rows()) {
      if (app.count(option.name()) != 0) {
        return option.name();
      }
    }
  }
  return "";
}

std::string option_text(const GivenOption& option) {
  const bool is_file = option.name == "--calibration" || option.name == "--validation-text";
  std::string text = " " + option.flag;
  for (const std::string& value : option.values) {
    text += " " + shell_word(is_file ? std::filesystem::path(value).filename().string() : value);
  }
  return text;
}

std::string command_text(const CLI::App& app) {
  static constexpr std::string_view kLeftOut[] = {"--out",  "--work",      "--force",  "--quiet",
                                                  "--json", "--log-level", "--by-part"};
  std::string text = "kvconvert CHECKPOINT";
  for (const GivenOption& option : given_options(app)) {
    if (std::ranges::find(kLeftOut, option.name) != std::end(kLeftOut)) {
      continue;
    }
    text += option_text(option);
  }
  return text;
}

}  // namespace kvc
