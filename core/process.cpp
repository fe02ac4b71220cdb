#include "core/process.h"

#include <unistd.h>

#include <array>
#include <csignal>
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

constexpr const char* kTurns = "GOMP_SPINCOUNT=1000";
constexpr std::size_t kMostVariables = 4096;

// The value of `NAME=`, or null. Not getenv(), which knows no variables yet where libraries are not initialised.
const char* value_of(char** environment, const char* name) {
  const std::size_t length = std::strlen(name);
  for (; *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, name, length) == 0) {
      return *environment + length;
    }
  }
  return nullptr;
}

// Its libraries are preloaded; what a program under it starts runs without it.
bool is_under_valgrind(char** environment) {
  const char* preloaded = value_of(environment, "LD_PRELOAD=");
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

void restart_with_short_waits(char** argv, char** environment) {
  if (environment == nullptr) {
    environment = environ;
  }
  if (value_of(environment, "GOMP_SPINCOUNT=") != nullptr ||
      value_of(environment, "OMP_WAIT_POLICY=") != nullptr || argv[0] == nullptr ||
      is_under_valgrind(environment)) {
    return;
  }
  std::array<char, 4096> path = {};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0 || length >= static_cast<ssize_t>(path.size()) - 1) {
    return;
  }
  std::array<char*, kMostVariables + 2> variables = {};
  std::size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (count == kMostVariables) {
      return;
    }
    variables[count] = environment[count];
  }
  variables[count] = const_cast<char*>(kTurns);
  execve(path.data(), argv, variables.data());
}

}  // namespace kvc
