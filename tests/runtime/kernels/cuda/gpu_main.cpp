#include "tests/runtime/kernels/cuda/gpu_main.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <set>

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

int print_families(const std::vector<KernelCase>& cases) {
  std::set<std::string> families;
  for (const KernelCase& kernel_case : cases) {
    families.insert(kernel_case.name.substr(0, kernel_case.name.find('_')));
  }
  for (const std::string& family : families) {
    std::printf("%s\n", family.c_str());
  }
  return 0;
}

int run_cases(const GpuTests& tests, const std::string& only) {
  int failed = 0, passed = 0;
  for (const KernelCase& kernel_case : tests.cases) {
    if (kernel_case.name.find(only) == std::string::npos) {
      continue;
    }
    for (const auto& way : tests.ways) {
      std::string difference;
      try {
        difference = way(kernel_case);
      } catch (const std::exception& error) {
        difference = error.what();
      }
      difference.empty() ? ++passed : ++failed;
      if (!difference.empty()) {
        std::printf("FAILED %s: %s\n", kernel_case.name.c_str(), difference.c_str());
        std::fflush(stdout);
      }
    }
  }
  std::printf("%s: %d passed, %d failed\n", tests.what.c_str(), passed, failed);
  return failed == 0 && passed > 0 ? 0 : kFailed;
}

}  // namespace

int gpu_test_main(int argc, char** argv, const GpuTests& tests) {
  if (argc > 2) {
    return usage(argv[0], "[PART OF A NAME | --families]");
  }
  const std::string word = argc > 1 ? argv[1] : "";
  if (word == "--families") {
    return print_families(tests.cases);
  }
  return run_on_gpu(argv[0], [&] { return run_cases(tests, word); });
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
