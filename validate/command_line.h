// kvvalidate's command line.
#pragma once

#include "core/command.h"

namespace kvc {

// Declares kvvalidate's options on `app` and returns what runs them.
Action declare_validate_options(CLI::App& app, CommonOptions& common);

}  // namespace kvc
