// How fast attention is on Llama-3.1-8B's shape, as ratios to what this GPU can do in the same run: copying memory,
// multiplying matrices through cuBLAS, and dense attention. Needs the CUDA toolkit and nothing else.
//
//   cuda_kernels_bench [--json FILE]      exit code 77: there is no GPU
#include "tests/runtime/kernels/cuda/gpu_attention_bench.h"

#include "tests/runtime/kernels/cuda/gpu_main.h"

int main(int argc, char** argv) {
  return kvc::testing::gpu_bench_main(argc, argv,
                                      [] { return kvc::testing::bench_attention().json(); });
}
