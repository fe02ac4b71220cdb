// Messages for people, which may quote any content of a file.
#pragma once

#include <string>
#include <string_view>

namespace kvc {

// The message on one line of bounded length: control characters as \n or \x01, and a long middle as "...".
std::string one_line(std::string_view message);

}  // namespace kvc
