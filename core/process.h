// What concerns a program as a whole: signals, and how its threads wait.
#pragma once

namespace kvc {

// SIGINT and SIGTERM end a run cleanly: long loops call check_interrupt(), which throws.
void install_interrupt_handlers();
bool is_interrupted();  // a signal has arrived
// Throws Error with ExitCode::kInterrupted once a signal has arrived.
void check_interrupt();

// A thread of libgomp that waits turns in a loop for milliseconds, which a machine with other work to do lacks. The
// runtime reads its settings when it is loaded, before main: the program starts itself once more, with the same
// arguments and GOMP_SPINCOUNT for some microseconds of turning before a thread sleeps. Returns where OMP_WAIT_POLICY or
// GOMP_SPINCOUNT is set already, under valgrind, which would lose the program, and where the restart fails. To be called
// first in main; no thread may run and nothing may be open yet.
void restart_with_short_waits(char** argv);

}  // namespace kvc
