#include <utility>

#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {

std::vector<KernelCase> attention_cases(CaseSize size) {
  const std::pair<const char*, std::vector<KernelCase>> kernels[] = {
      {"dense_", dense_attention_cases(size)}, {"fused_", fused_attention_cases(size)},
      {"combine_", combine_cases(size)},       {"latents_", latent_attention_cases(size)},
      {"coded_", coded_attention_cases(size)}, {"coded_", code_attention_cases(size)},
  };
  std::vector<KernelCase> all;
  for (const auto& [name, cases] : kernels) {
    for (const KernelCase& one : cases) {
      all.push_back({name + one.name, one.run});
    }
  }
  return all;
}

}  // namespace kvc::testing
