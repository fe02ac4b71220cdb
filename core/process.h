// What concerns a program as a whole: signals, and how its threads wait.
#pragma once

namespace kvc {

// SIGINT and SIGTERM end a run cleanly: long loops call check_interrupt(), which throws.
void install_interrupt_handlers();
bool is_interrupted();  // a signal has arrived
// Throws Error with ExitCode::kInterrupted once a signal has arrived.
void check_interrupt();

// A waiting libgomp thread spins for milliseconds, which slows a busy machine down. libgomp reads its settings when it
// is loaded, before main, so the program restarts itself with the same arguments and a GOMP_SPINCOUNT of some
// microseconds. Returns without a restart if OMP_WAIT_POLICY or GOMP_SPINCOUNT is set in the environment (null: the
// process's), under valgrind, and if the restart fails. Call first in main, before any thread runs or file is open. The
// programs call it sooner (core/program_start.cpp).
void restart_with_short_waits(char** argv, char** environment = nullptr);

}  // namespace kvc
