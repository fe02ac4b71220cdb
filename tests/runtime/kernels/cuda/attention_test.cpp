// Attention kernels of the GPU, their own source run on the CPU, against the references.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/emulated_cases.h"

namespace kvc::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(All, EmulatedKernel,
                         ::testing::ValuesIn(attention_cases(CaseSize::kSmall)), kernel_case_name);

TEST(CudaCombine, GivesTheSameBitsInAnyOrderOfThreads) {
  EmulatedBackend forward(ThreadOrder::kForward), backward(ThreadOrder::kBackward);
  const CombinedOutput expected = combine_outputs(forward), actual = combine_outputs(backward);
  EXPECT_EQ(actual.output, expected.output);
  EXPECT_EQ(actual.log_sum, expected.log_sum);
}

}  // namespace
}  // namespace kvc::testing
