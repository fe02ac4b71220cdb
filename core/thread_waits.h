// How OpenMP's threads wait for each other.
#pragma once

namespace kvc {

// A waiting libgomp thread spins for milliseconds, which slows a busy machine down. libgomp reads its settings when it
// is loaded, before main, so the program restarts itself with the same arguments and a GOMP_SPINCOUNT of some
// microseconds. Returns without a restart if OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, under valgrind, and if the
// restart fails. Call first in main, before any thread runs or file is open.
void restart_with_short_waits(char** argv);

}  // namespace kvc
