#include "core/process.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace kvc {
namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void on_signal(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);  // a second signal ends the process at once
  std::signal(SIGTERM, SIG_DFL);
}

constexpr const char* kVariable = "GOMP_SPINCOUNT";
constexpr const char* kTurns = "1000";

// Its libraries are preloaded; what a program under it starts runs without it.
bool is_under_valgrind() {
  const char* preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::strstr(preloaded, "vgpreload") != nullptr;
}

}  // namespace

void install_interrupt_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool is_interrupted() { return interrupted != 0; }

void check_interrupt() {
  if (is_interrupted()) {
    throw Error("interrupted", ExitCode::kInterrupted);
  }
}

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
