#include "tests/runtime/kernels/cuda/gpu_main.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>

#include "tests/runtime/kernels/cuda/gpu_backend.h"

namespace kvc::testing {
namespace {

constexpr int kFailed = 1, kUsage = 2, kSkipped = 77;

int run_on_gpu(const char* program, const std::function<int()>& run) {
  const std::string missing = missing_gpu();
  if (!missing.empty()) {
    std::printf("skipped: no GPU (%s)\n", missing.c_str());
    return kSkipped;
  }
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: error: %s\n", program, error.what());
    return kFailed;
  }
}

int usage(const char* program, const char* arguments) {
  std::fprintf(stderr, "usage: %s %s\n", program, arguments);
  return kUsage;
}

}  // namespace

int gpu_test_main(int argc, char** argv, const std::function<int(const std::string& only)>& run) {
  if (argc > 2) {
    return usage(argv[0], "[PART OF A NAME]");
  }
  return run_on_gpu(argv[0], [&] { return run(argc > 1 ? argv[1] : ""); });
}

int gpu_bench_main(int argc, char** argv, const std::function<std::string()>& run) {
  if (argc != 1 && (argc != 3 || std::strcmp(argv[1], "--json") != 0)) {
    return usage(argv[0], "[--json FILE]");
  }
  return run_on_gpu(argv[0], [&] {
    const std::string json = run();
    if (argc == 3) {
      std::ofstream file(argv[2]);
      file << json;
      if (!file.flush()) {
        std::fprintf(stderr, "%s: error: %s cannot be written\n", argv[0], argv[2]);
        return kFailed;
      }
    }
    return 0;
  });
}

}  // namespace kvc::testing
