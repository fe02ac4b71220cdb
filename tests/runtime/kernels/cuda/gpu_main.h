// The programs that run on a GPU: what they print and return where there is none, their arguments, their files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {

struct GpuTests {
  std::string what;
  std::vector<KernelCase> cases;
  // Each case runs in each way: empty, or what differs. What is thrown counts as a difference.
  std::vector<std::function<std::string(const KernelCase&)>> ways;
};

// Exit code 0: all passed; 1: not, or the reason for what is thrown; 77 and why where there is no GPU; 2 for arguments
// that cannot be.
// PROGRAM [PART OF A NAME] runs cases; PROGRAM --families prints what their names begin with, a line each, and needs no
// GPU.
int gpu_test_main(int argc, char** argv, const GpuTests& tests);
// PROGRAM [--json FILE]: run() returns the file's text, which is written whole, or 1.
int gpu_bench_main(int argc, char** argv, const std::function<std::string()>& run);

}  // namespace kvc::testing
