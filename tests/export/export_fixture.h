// A small checkpoint and a conversion of it with random factors.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "core/conversion_file.h"
#include "export/export.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"

namespace kvc::testing {

class ExportFixture : public ::testing::Test {
 protected:
  // Joint groups of layers 0-1 and 2 (ls, refitted) beside the plain layer 3.
  KvPlan joint_plan() const;
  // One split group per layer (Palu).
  KvPlan split_plan() const;
  // Writes the checkpoint and random factors for `plan`.
  void make(const KvPlan& plan);
  void write_conversion_of(const KvPlan& plan, const std::string& checkpoint_hash);
  ExportOptions options(ExportFormat format) const;
  void export_as(ExportFormat format) { export_checkpoint(options(format)); }

  TemporaryDirectory directory_;
  std::filesystem::path checkpoint_ = directory_ / "checkpoint";
  std::filesystem::path conversion_ = directory_ / "conversion";
  std::filesystem::path out_ = directory_ / "out";
  SyntheticCheckpoint synthetic_;
  std::string skip_tensor_;                   // left out of the conversion
  double scale_ = 1;                          // of the factors
  std::map<std::string, std::int64_t> wide_;  // by matrix: the conversion's choice of 8 bits
};

std::string read_all(const std::filesystem::path& file);
void write_all(const std::filesystem::path& file, const std::string& text);
// The tensor in float32, whatever it is stored as.
at::Tensor tensor_of(const std::filesystem::path& directory, const std::string& name);

}  // namespace kvc::testing
