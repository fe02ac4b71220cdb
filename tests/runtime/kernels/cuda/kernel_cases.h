// What CUDA kernels must do, run on any backend: the same cases through the emulator in the CPU's tests and on a
// GPU in cuda_kernels_test. No GoogleTest: that program has only the CUDA toolkit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/kernel_backend.h"

namespace kvc::testing {

struct KernelCase {
  std::string name;                                // letters, digits and _
  std::function<std::string(KernelBackend&)> run;  // empty, or what differs and by how much
};

enum class CaseSize { kSmall, kLarge };  // large: takes the emulator too long

std::vector<KernelCase> dense_attention_cases(CaseSize size);
std::vector<KernelCase> fused_attention_cases(CaseSize size);
std::vector<KernelCase> fuse_rows_cases(CaseSize size);
std::vector<KernelCase> combine_cases(CaseSize size);
std::vector<KernelCase> latent_attention_cases(CaseSize size);
std::vector<KernelCase> one_pass_attention_cases(CaseSize size);
std::vector<KernelCase> coded_attention_cases(CaseSize size);
// All of them.
std::vector<KernelCase> attention_cases(CaseSize size);

}  // namespace kvc::testing
