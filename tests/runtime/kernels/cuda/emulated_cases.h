// GPU kernels, their own source run on the CPU, against the references. For one source of a test program.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tests/runtime/kernels/cuda/emulated_backend.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {

inline void PrintTo(const KernelCase& kernel_case, std::ostream* to) { *to << kernel_case.name; }

inline std::string kernel_case_name(const ::testing::TestParamInfo<KernelCase>& info) {
  return info.param.name;
}

class EmulatedKernel : public ::testing::TestWithParam<KernelCase> {};

TEST_P(EmulatedKernel, MatchesReferenceInAnyOrderOfThreads) {
  for (const ThreadOrder order : {ThreadOrder::kForward, ThreadOrder::kBackward}) {
    EmulatedBackend backend(order);
    EXPECT_EQ(GetParam().run(backend), "");
  }
}

}  // namespace kvc::testing
