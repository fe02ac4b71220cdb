// How OpenMP's threads wait for each other.
#pragma once

namespace kvc {

// A thread of libgomp that waits turns in a loop for milliseconds, which a machine with other work to do lacks. The
// runtime reads its settings when it is loaded, before main: the program starts itself once more, with the same
// arguments and GOMP_SPINCOUNT for some microseconds of turning before a thread sleeps. Returns where OMP_WAIT_POLICY or
// GOMP_SPINCOUNT is set already, under valgrind, which would lose the program, and where the restart fails. To be called
// first in main; no thread may run and nothing may be open yet.
void restart_with_short_waits(char** argv);

}  // namespace kvc
