// How fast attention is on Llama-3.1-8B's shape, as ratios to what this GPU can do in the same run: copying memory,
// multiplying matrices through cuBLAS, and dense attention. Needs the CUDA toolkit and nothing else.
//
//   cuda_kernels_bench [--json FILE]      exit code 77: there is no GPU
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

#include "tests/runtime/kernels/cuda/gpu_attention_bench.h"
#include "tests/runtime/kernels/cuda/gpu_memory.h"

int main(int argc, char** argv) {
  const std::string missing = kvc::testing::missing_gpu();
  if (!missing.empty()) {
    std::printf("skipped: no GPU (%s)\n", missing.c_str());
    return 77;
  }
  if (argc != 1 && (argc != 3 || std::strcmp(argv[1], "--json") != 0)) {
    std::fprintf(stderr, "usage: %s [--json FILE]\n", argv[0]);
    return 2;
  }
  try {
    const std::string json = kvc::testing::bench_attention().json();
    if (argc == 3) {
      std::ofstream file(argv[2]);
      file << json;
      if (!file.flush()) {
        std::fprintf(stderr, "error: %s cannot be written\n", argv[2]);
        return 1;
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
