// kvconvert's command line.
#pragma once

#include "core/command.h"

namespace kvc {

// Declares kvconvert's options on `app` and returns the action that runs them.
Action declare_convert_options(CLI::App& app, CommonOptions& common);

}  // namespace kvc
