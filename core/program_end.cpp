// Part of every program: it ends without LibTorch's destructors, which take much of the time of a short run.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace {

#if !defined(__SANITIZE_ADDRESS__)

// Runs behind all other handlers of this program, and leaves destructors of libraries to the system.
void leave(int status, void* /*nothing*/) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}
[[maybe_unused]] const int registered = on_exit(leave, nullptr);

#endif

}  // namespace
