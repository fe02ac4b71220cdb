#include "core/progress.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

TEST(OneLine, EscapesWhatWouldBreakTheLine) {
  EXPECT_EQ(one_line("config.json: \"a\nb\x01\x7f\" \xC3\xA9"),
            "config.json: \"a\\nb\\x01\\x7f\" \xC3\xA9");
  EXPECT_EQ(one_line("a\xC2\x9B"
                     "31m\xC2\xA0"),
            "a\\x9b"
            "31m\xC2\xA0");  // C1, and a space that is none
}

TEST(OneLine, LeavesOtherBytesAlone) {
  EXPECT_EQ(one_line("\xC2"
                     "a\xC2"),
            "\xC2"
            "a\xC2");  // not UTF-8
  EXPECT_EQ(one_line("\xC2\n"), "\xC2\\n");
}

TEST(Log, EscapesWhatATerminalWouldObey) {
  ::testing::internal::CaptureStderr();
  log_warning("donor \x1b[31mred\x1b[2J\nsecond line");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: donor \\x1b[31mred\\x1b[2J\nsecond line\n");
}

TEST(OneLine, LeavesOutTheMiddleOfALongMessage) {
  std::string message(9000, 'x');
  message.insert(0, "begin").append("end");
  const std::string line = one_line(message);
  EXPECT_EQ(line.size(), 4003u);
  EXPECT_TRUE(line.starts_with("beginx"));
  EXPECT_TRUE(line.ends_with("xend"));
  EXPECT_NE(line.find("x...x"), std::string::npos);
}

}  // namespace
}  // namespace kvc
