// What tests of statistics start from and look at.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/token_set.h"
#include "tests/testing/temporary_directory.h"

namespace kvc::testing {

TokenSet token_set(const std::vector<std::vector<std::int64_t>>& sequences);
// A float64 dataset of an HDF5 file.
at::Tensor read_dataset(const std::filesystem::path& path, const std::string& dataset);
// Within `relative` of the largest expected value.
::testing::AssertionResult equal_to(const at::Tensor& actual, const at::Tensor& expected,
                                    double relative);

// A random checkpoint of the architecture that is the parameter, or one of llama with YaRN: "llama_yarn".
class StatisticsTest : public ::testing::TestWithParam<const char*> {
 protected:
  StatisticsTest();

  TemporaryDirectory directory_;
  Checkpoint checkpoint_;
};

}  // namespace kvc::testing
