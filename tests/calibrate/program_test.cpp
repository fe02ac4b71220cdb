#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/json.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int code = 0;
  std::string out, err;
};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class KvcalibrateTest : public ::testing::Test {
 protected:
  KvcalibrateTest() {
    testing::SyntheticCheckpoint synthetic;
    synthetic.tokenizer = true;
    write_synthetic_checkpoint(directory_ / "model", synthetic);
  }
  Outcome run(const std::string& arguments) {
    const std::string command = "cd " + directory_.path().string() +
                                " && " KVC_BIN_DIR "/kvcalibrate " + arguments + " >out 2>err";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), text_of(directory_ / "out"), text_of(directory_ / "err")};
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(KvcalibrateTest, CalibratesOnTheBuiltInTextAndAddsFiles) {
  const std::string sizes = " --num-sequences 3 --seq-len 16";
  const Outcome first = run("model --out a.h5 --json --threads 1 --log-level debug" + sizes);
  ASSERT_EQ(first.code, 0) << first.err;
  const Json summary = parse_json(first.out, "out");
  EXPECT_EQ(summary.at("num_tokens"), 48);
  EXPECT_EQ(summary.at("similarity").size(), 3u);
  EXPECT_THAT(first.err, HasSubstr("1 threads"));  // --threads reached LibTorch's pool
  ASSERT_EQ(run("model --out b.h5 --quiet --seed 7" + sizes).code, 0);
  const Outcome sum = run("--out sum.h5 --add a.h5 --add b.h5 --json");
  ASSERT_EQ(sum.code, 0) << sum.err;
  EXPECT_EQ(parse_json(sum.out, "out").at("num_tokens"), 96);
}

TEST_F(KvcalibrateTest, RefusesWithOneLineAndLeavesNothingBehind) {
  std::ofstream(directory_ / "empty.txt").close();
  struct Case {
    std::string arguments;
    int code;
    std::string message;
  };
  for (const Case& c : {Case{"model", 2, "--out"}, Case{"--out c.h5", 2, "checkpoint is required"},
                        Case{"model --out c.h5 --seq-len 0", 2, "--seq-len"},
                        Case{"model --out c.h5 --tokens t.h5 --calibration x.txt", 2, "exclude"},
                        Case{"absent --out c.h5", 1, "absent"},
                        Case{"model --out c.h5 --tokens absent.h5", 1, "absent.h5"},
                        Case{"model --out c.h5 --calibration empty.txt", 1, "empty.txt"},
#ifndef KVC_CUDA
                        Case{"model --out c.h5 --device cuda", 1, "no GPU support"},
#endif
                        Case{"model --out absent/c.h5", 1, "absent"}}) {
    const Outcome outcome = run(c.arguments);
    EXPECT_EQ(outcome.code, c.code) << c.arguments;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("kvcalibrate: error: "));
    EXPECT_THAT(outcome.err, HasSubstr(c.message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == "model" || name == "empty.txt" || name == "out" || name == "err") << name;
  }
}

}  // namespace
}  // namespace kvc
