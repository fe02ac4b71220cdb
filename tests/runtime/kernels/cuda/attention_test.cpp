// Attention kernels of the GPU, their own source run on the CPU, against the references.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/emulated_backend.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {

void PrintTo(const KernelCase& kernel_case, std::ostream* to) { *to << kernel_case.name; }

namespace {

class CudaAttention : public ::testing::TestWithParam<KernelCase> {};

TEST_P(CudaAttention, MatchesReferenceInAnyOrderOfThreads) {
  for (const ThreadOrder order : {ThreadOrder::kForward, ThreadOrder::kBackward}) {
    EmulatedBackend backend(order);
    EXPECT_EQ(GetParam().run(backend), "");
  }
}

std::string name_of(const ::testing::TestParamInfo<KernelCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(All, CudaAttention, ::testing::ValuesIn(attention_cases(CaseSize::kSmall)),
                         name_of);

TEST(CudaCombine, GivesTheSameBitsInAnyOrderOfThreads) {
  EmulatedBackend forward(ThreadOrder::kForward), backward(ThreadOrder::kBackward);
  const CombinedOutput expected = combine_outputs(forward), actual = combine_outputs(backward);
  EXPECT_EQ(actual.output, expected.output);
  EXPECT_EQ(actual.log_sum, expected.log_sum);
}

}  // namespace
}  // namespace kvc::testing
