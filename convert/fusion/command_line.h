// The flags of fused layers.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

#include "convert/fusion/fusion_settings.h"

namespace kvc {

// Declares them; call the result after parsing (UsageError for an unknown word).
std::function<void()> declare_fusion_options(CLI::App& app, FusionSettings& settings);

}  // namespace kvc
