// What launch functions answer: empty, or what is wrong and how to put it right.
#pragma once

#include <string>

namespace kvc {

using LaunchError = std::string;

}  // namespace kvc
