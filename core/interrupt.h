// How a signal ends a run.
#pragma once

namespace kvc {

// SIGINT and SIGTERM end a run cleanly: long loops call check_interrupt(), which throws.
void install_interrupt_handlers();
bool is_interrupted();  // a signal has arrived
// Throws Error with ExitCode::kInterrupted once a signal has arrived.
void check_interrupt();
// The same for work that asks whether to stop: throws, or returns false.
bool stop_if_interrupted();

}  // namespace kvc
