#include "core/message.h"

#include <fmt/format.h>

#include <iterator>

namespace kvc {

std::string one_line(std::string_view message) {
  constexpr std::size_t kMaxLength = 4000, kEnd = 1000;
  std::string line;
  for (const char c : message) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      fmt::format_to(std::back_inserter(line), "\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  if (line.size() > kMaxLength) {
    line.replace(kMaxLength - kEnd, line.size() - kMaxLength, "...");
  }
  return line;
}

}  // namespace kvc
