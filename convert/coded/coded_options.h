// The flags of coded caches.
#pragma once

#include <functional>
#include <vector>

#include "convert/coded/coded_settings.h"
#include "core/command.h"

namespace kvc {

// Declares them; call the result after parsing (UsageError for an unknown word).
std::function<void()> declare_coded_options(CLI::App& app, CodedSettings& settings);
// Their names: given without --method they select coded, given to another method they are refused.
const std::vector<const char*>& coded_flags();

}  // namespace kvc
