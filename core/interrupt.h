// How a signal ends a run.
#pragma once

namespace kvc {

// SIGINT and SIGTERM end a run cleanly: long loops call check_interrupt(), which throws.
void install_interrupt_handlers();
bool is_interrupted();  // a signal has arrived
// Throws Error with ExitCode::kInterrupted once a signal has arrived.
void check_interrupt();

}  // namespace kvc
