#include "validate/task_results.h"

#include <gmock/gmock.h>

#include <fstream>

#include "core/output.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Results : public ::testing::Test {
 protected:
  static Json line(int sample, const std::string& run = "run") {
    return {{"run", run}, {"sample", sample}, {"score", 100.0 / 3}};
  }
  // What two lines give in one run.
  std::string uninterrupted() const {
    const fs::path path = directory_ / "whole.jsonl";
    TaskResults results(path, "run", false);
    results.append({line(0), line(1)});
    results.commit();
    return read_file(path, 1 << 20);
  }
  void expect_error(const std::string& run, const std::string& words) const {
    EXPECT_THAT(error_of([&] { TaskResults(path_, run, false); }), HasSubstr(words));
  }
  TemporaryDirectory directory_;
  fs::path path_ = directory_ / "results.jsonl", left_ = directory_ / ".results.jsonl.partial";
};

TEST_F(Results, AppearWhenComplete) {
  {
    TaskResults results(path_, "run", false);
    results.append({line(0)});
    EXPECT_FALSE(fs::exists(path_));
    expect_error("run", "another process");
    results.append({line(1)});
    results.commit();
  }
  EXPECT_EQ(read_file(path_, 1 << 20), uninterrupted());
  EXPECT_FALSE(fs::exists(left_));
  expect_error("run", "exists already");
}

TEST_F(Results, ContinueBehindTheCompleteLines) {
  { TaskResults(path_, "run", false).append({line(0), line(1)}); }
  const std::string left = read_file(left_, 1 << 20);
  for (std::size_t bytes = 0; bytes <= left.size(); bytes += 5) {
    fs::remove(left_);
    write_file(left_, left.substr(0, bytes));
    TaskResults results(path_, "run", true);
    const auto complete = static_cast<int>(results.lines().size());
    EXPECT_EQ(complete,
              std::count(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(bytes), '\n'));
    for (int i = complete; i < 2; ++i) {
      results.append({line(i)});
    }
    results.commit();
    EXPECT_EQ(read_file(path_, 1 << 20), left) << bytes;
  }
}

TEST_F(Results, LinesBehindABatchAreDropped) {
  TaskResults results(path_, "run", false);
  results.append({line(0), line(7), line(8)});
  results.keep_first(1);
  results.append({line(1)});
  results.commit();
  EXPECT_EQ(read_file(path_, 1 << 20), uninterrupted());
}

TEST_F(Results, OfAnotherRunAreRefused) {
  { TaskResults(path_, "other", false).append({line(0, "other")}); }
  expect_error("run", "left by an interrupted run with other checkpoints");
  EXPECT_TRUE(fs::exists(left_));
  TaskResults results(path_, "run", true);
  EXPECT_TRUE(results.lines().empty());
  results.append({line(0), line(1)});
  results.commit();
  EXPECT_EQ(read_file(path_, 1 << 20), uninterrupted());
}

TEST_F(Results, DamagedAreRefused) {
  write_file(left_, "{\"run\": \"run\"}\nno json\n");
  expect_error("run", "--force");
}

TEST_F(Results, NothingIsLeftOfNothing) {
  { TaskResults results(path_, "run", false); }
  EXPECT_TRUE(fs::is_empty(directory_.path()));
  TaskResults in_memory("", "run", false);
  in_memory.append({line(0)});
  in_memory.commit();
  EXPECT_EQ(in_memory.lines().size(), 1u);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

}  // namespace
}  // namespace kvc::testing
