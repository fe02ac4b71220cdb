// Where the launches of an engine's ops go: to a GPU (cuda_queue.cpp), or in tests to the CPU emulator.
#pragma once

#include "runtime/ops/device_program.h"

namespace kvc {

// device: its index, as the tensors' of an op.
int device_multiprocessors(int device);
// Queues all launches behind what torch has queued in its current stream. What went wrong, or empty.
LaunchError queue_launches(const DeviceProgram& program, int device);

}  // namespace kvc
