// The programs that run on a GPU: what they print and return where there is none, their arguments, their files.
#pragma once

#include <functional>
#include <string>

namespace kvc::testing {

// Exit code 77 and why where there is no GPU, 2 for arguments that cannot be, 1 with the reason for what is thrown.
// PROGRAM [PART OF A NAME]: run(part) returns the exit code.
int gpu_test_main(int argc, char** argv, const std::function<int(const std::string& only)>& run);
// PROGRAM [--json FILE]: run() returns the file's text, which is written whole, or 1.
int gpu_bench_main(int argc, char** argv, const std::function<std::string()>& run);

}  // namespace kvc::testing
