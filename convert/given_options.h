// Which options a command line gave.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "convert/options.h"

namespace kvc {

// An option that was given.
struct GivenOption {
  std::string name;                 // "--validate"
  std::string flag;                 // as it is written: "--no-validate"
  std::vector<std::string> values;  // none of a switch
};
std::vector<GivenOption> given_options(const CLI::App& app);

// The first flag of these options that is given, or an empty string.
std::string first_given(const CLI::App& app, const std::vector<Options>& kinds);

// An option and its values behind a space, as a shell reads them, of files the names alone.
std::string option_text(const GivenOption& option);
// The options that were given, as a shell reads them, without the user's directories: "kvconvert CHECKPOINT --rank 0.7".
std::string command_text(const CLI::App& app);

}  // namespace kvc
