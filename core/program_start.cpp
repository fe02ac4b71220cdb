// Part of every program: what happens before and after LibTorch's constructors and destructors, which take most of the time
// of a short run.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "core/process.h"

namespace {

#if defined(__SANITIZE_ADDRESS__)
[[gnu::constructor]]  // behind the sanitizer's own
#endif
void start(int /*argc*/, char** argv, char** environment) {
  kvc::restart_with_short_waits(argv, environment);
}

#if !defined(__SANITIZE_ADDRESS__)

// Before all constructors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const at_start)(int, char**, char**) = start;

// Runs behind all other handlers of this program, and leaves destructors of libraries to the system.
void leave(int status, void* /*nothing*/) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}
[[maybe_unused]] const int registered = on_exit(leave, nullptr);

#endif

}  // namespace
