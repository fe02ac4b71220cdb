// Kernels in rank space through the CPU emulator.
#pragma once

#include "runtime/kernels/cuda/attention_rank.h"
#include "tests/runtime/kernels/cuda/emulated_thread.h"

namespace kvc::testing {

// Of a block: an H100's.
constexpr int kEmulatedSharedBytes = 227 * 1024;

// Throws std::runtime_error where a launch would fail.
void emulate_rank_attention(const RankAttention& params, ThreadOrder order);
void emulate_project_values(const ProjectValues& params, ThreadOrder order);

}  // namespace kvc::testing
