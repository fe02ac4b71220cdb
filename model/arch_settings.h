// Which keys of config.json a family honours beyond those that all families have.
#pragma once

#include <string>
#include <vector>

#include "model/arch.h"

namespace kvc {

// In the order of a reader's interest: attention, windows, RoPE, MLP.
std::vector<std::string> honoured_settings(const ArchSpec& arch);

}  // namespace kvc
