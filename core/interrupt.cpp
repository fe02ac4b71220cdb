#include "core/interrupt.h"

#include <csignal>

#include "core/error.h"

namespace kvc {
namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void on_signal(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);  // a second signal ends the process at once
  std::signal(SIGTERM, SIG_DFL);
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

bool stop_if_interrupted() {
  check_interrupt();
  return false;
}

}  // namespace kvc
