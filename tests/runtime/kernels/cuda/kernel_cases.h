// What CUDA kernels must do, run on any backend: the same cases through the emulator in the CPU's tests and on a
// GPU. No GoogleTest: those programs have only the CUDA toolkit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_backend.h"

namespace kvc::testing {

struct KernelCase {
  std::string name;                                // letters, digits and _
  std::function<std::string(KernelBackend&)> run;  // empty, or what differs and by how much
};

enum class CaseSize { kSmall, kLarge };  // large: takes the emulator too long

std::vector<KernelCase> dense_attention_cases(CaseSize size);
std::vector<KernelCase> fused_attention_cases(CaseSize size);
std::vector<KernelCase> combine_cases(CaseSize size);
// Of 66 parts: the same bits in whatever order a block's threads run.
CombinedOutput combine_outputs(KernelBackend& backend);
std::vector<KernelCase> latent_attention_cases(CaseSize size);
std::vector<KernelCase> coded_attention_cases(CaseSize size);
std::vector<KernelCase> code_attention_cases(CaseSize size);  // keys apart from values
// All of them.
std::vector<KernelCase> attention_cases(CaseSize size);

std::vector<KernelCase> code_cases();       // integer codes and tiles of codes
std::vector<KernelCase> paged_cases();      // tokens in an engine's pages
std::vector<KernelCase> open_tile_cases();  // attention over their exact rows
std::vector<KernelCase> budget_cases();     // steps under a budget
// For steps whose rows are in several parts: the same bits in whatever order these are attended to.
std::vector<std::uint16_t> budget_outputs(KernelBackend& backend);

std::vector<KernelCase> append_cases();   // rows of stores
std::vector<KernelCase> product_cases();  // of a few rows with a weight
std::vector<KernelCase>
step_cases();  // these, products, norms, embeddings, cosines of a decoding step
std::vector<KernelCase> sample_cases();  // tokens

}  // namespace kvc::testing
