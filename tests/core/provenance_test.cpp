#include "core/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/testing/error_of.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

class ProvenanceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) /
            ("kvc_provenance_" + std::to_string(getpid()) + ".h5");
    std::filesystem::remove(path_);
    provenance_.kind = "fisher";
    provenance_.checkpoint_hash = "0123456789abcdef";
    provenance_.tokens_hash = "";
    provenance_.options = {{"seed", std::uint64_t{18446744073709551615u}}, {"ratio", 0.1}};
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void write() {
    Hdf5Writer file(path_);
    write_provenance(file, provenance_);
    file.close();
  }

  std::filesystem::path path_;
  Provenance provenance_;
};

TEST_F(ProvenanceTest, ReadsBackEqual) {
  write();
  EXPECT_EQ(read_provenance(Hdf5Reader(path_)), provenance_);
  EXPECT_TRUE(artifact_matches(path_, provenance_));
}

TEST_F(ProvenanceTest, DoesNotMatchWhenAnythingDiffers) {
  write();
  Provenance other = provenance_;
  other.options["ratio"] = 0.2;
  EXPECT_FALSE(artifact_matches(path_, other));
  other = provenance_;
  other.tool_version = "0.0.1";
  EXPECT_FALSE(artifact_matches(path_, other));
  other = provenance_;
  other.tokens_hash = "x";
  EXPECT_FALSE(artifact_matches(path_, other));
  EXPECT_FALSE(artifact_matches(path_.string() + ".absent", provenance_));
}

TEST_F(ProvenanceTest, ChecksKindAndCheckpoint) {
  EXPECT_NO_THROW(check_provenance(provenance_, "fisher", "0123456789abcdef", path_));
  EXPECT_THAT(error_of([&] { check_provenance(provenance_, "fisher", "fedcba9876543210", path_); }),
              HasSubstr(path_.string() + ": computed for another checkpoint"));
  EXPECT_THROW(check_provenance(provenance_, "calibration", "0123456789abcdef", path_), Error);
}

TEST_F(ProvenanceTest, RefusesForeignFiles) {
  Hdf5Writer file(path_);
  file.close();
  EXPECT_THROW(read_provenance(Hdf5Reader(path_)), Error);
  EXPECT_FALSE(artifact_matches(path_, provenance_));
}

}  // namespace
}  // namespace kvc
