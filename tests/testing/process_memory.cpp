#include "tests/testing/process_memory.h"

#include <fstream>
#include <stdexcept>
#include <string>

namespace kvc::testing {

std::int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (std::int64_t kilobytes = 0; word == "Anonymous:" && file >> kilobytes) {
      return kilobytes * 1024;
    }
  }
  throw std::runtime_error("/proc/self/smaps_rollup has no line \"Anonymous:\"");
}

}  // namespace kvc::testing
