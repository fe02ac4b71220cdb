// Kernels of a decoding step, their own source run on the CPU, against plain loops.
#include <gtest/gtest.h>

#include <string>

#include "runtime/kernels/cuda/device_random.h"
#include "runtime/kernels/cuda/few_rows_product.h"
#include "tests/runtime/kernels/cuda/emulated_cases.h"

namespace kvc::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Parts, EmulatedKernel, ::testing::ValuesIn(step_cases()),
                         kernel_case_name);
INSTANTIATE_TEST_SUITE_P(Samples, EmulatedKernel, ::testing::ValuesIn(sample_cases()),
                         kernel_case_name);

// Known answers of the authors' library (Random123, kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
  const PhiloxBlock zeros = philox({{0, 0, 0, 0}}, 0, 0);
  EXPECT_EQ(zeros.word[0], 0x6627E8D5u);
  EXPECT_EQ(zeros.word[1], 0xE169C58Du);
  EXPECT_EQ(zeros.word[2], 0xBC57AC4Cu);
  EXPECT_EQ(zeros.word[3], 0x9B00DBD8u);
  const PhiloxBlock pi =
      philox({{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}}, 0xA4093822, 0x299F31D0);
  EXPECT_EQ(pi.word[0], 0xD16CFE09u);
  EXPECT_EQ(pi.word[1], 0x94FDCCEBu);
  EXPECT_EQ(pi.word[2], 0x5001E420u);
  EXPECT_EQ(pi.word[3], 0x24126EA1u);
}

TEST(ScaledBits, AreSpreadEvenlyBelowTheTotal) {
  EXPECT_EQ(scaled_bits(0, 1000), 0u);
  EXPECT_EQ(scaled_bits(~std::uint64_t{0}, 1000), 999u);
  EXPECT_EQ(scaled_bits(std::uint64_t{1} << 63, std::uint64_t{1} << 50), std::uint64_t{1} << 49);
  EXPECT_EQ(scaled_bits(0x0123456789ABCDEF, 0xFEDCBA9876543210), 0x0121FA00AD77D742u);
}

TEST(FewRowsProduct, RefusesWhatItDoesNotTake) {
  FewRowsProduct params{.num_rows = 33, .in = 32, .out = 4};
  EXPECT_NE(check_few_rows_product(params).find("33 rows, expected 1 to 32"), std::string::npos);
  params.num_rows = 1;
  params.in = 12;
  EXPECT_NE(check_few_rows_product(params).find("12 columns"), std::string::npos);
}

}  // namespace
}  // namespace kvc::testing
