// Part of every program: what happens before and after LibTorch's constructors and destructors, which take most of the time
// of a short run.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "core/process.h"

namespace {

// A restart comes before constructors.
void start(int /*argc*/, char** argv, char** environment) {
  kvc::restart_with_short_waits(argv, environment);
}

#if defined(__SANITIZE_ADDRESS__)

#define KVC_START_SECTION ".init_array"  // checked code runs behind the sanitizer's constructor

#else

#define KVC_START_SECTION ".preinit_array"

// Runs behind all other handlers of this program, and leaves destructors of libraries to the system.
void leave(int status, void* /*nothing*/) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}
[[maybe_unused]] const int registered = on_exit(leave, nullptr);

#endif

[[gnu::section(KVC_START_SECTION), gnu::used]] void (*const at_start)(int, char**, char**) = start;

}  // namespace
