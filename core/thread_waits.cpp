#include "core/thread_waits.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

namespace kvc {
namespace {

constexpr const char* kVariable = "GOMP_SPINCOUNT";
constexpr const char* kTurns = "1000";

// Its libraries are preloaded; what a program under it starts runs without it.
bool is_under_valgrind() {
  const char* preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::strstr(preloaded, "vgpreload") != nullptr;
}

}  // namespace

void restart_with_short_waits(char** argv) {
  if (std::getenv(kVariable) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr ||
      argv[0] == nullptr || is_under_valgrind()) {
    return;
  }
  std::array<char, 4096> path = {};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0 || length >= static_cast<ssize_t>(path.size()) - 1 ||
      setenv(kVariable, kTurns, 0) != 0) {
    return;
  }
  execv(path.data(), argv);
  unsetenv(kVariable);  // not restarted: as if nothing had been tried
}

}  // namespace kvc
