#include "runtime/stop_filter.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace kvc {
namespace {

// What passes, piece by piece.
std::vector<std::string> passed(StopFilter& filter, const std::vector<std::string>& pieces) {
  std::vector<std::string> texts;
  for (const std::string& piece : pieces) {
    texts.push_back(filter.push(piece));
  }
  texts.push_back(filter.finish());
  return texts;
}

using Pieces = std::vector<std::string>;

TEST(StopFilter, PassesEverythingWithoutStopStrings) {
  StopFilter filter({});
  EXPECT_EQ(passed(filter, {"a", "", "b\n"}), (Pieces{"a", "", "b\n", ""}));
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, HoldsBackWhatMayBeTheBeginningOfOne) {
  StopFilter filter({"</end>"});
  EXPECT_EQ(passed(filter, {"x<", "/", "en", "t>", "<"}), (Pieces{"x", "", "", "</ent>", "", "<"}));
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, EndsBeforeTheStopStringAcrossPieces) {
  StopFilter filter({"</end>"});
  EXPECT_EQ(passed(filter, {"a <", "/e", "nd> b", "c"}), (Pieces{"a ", "", "", "", ""}));
  EXPECT_TRUE(filter.stopped());
}

TEST(StopFilter, AFalseBeginningMayHoldTheTrueOne) {
  StopFilter filter({"aab"});
  EXPECT_EQ(passed(filter, {"a", "a", "a", "b"}), (Pieces{"", "", "a", "", ""}));
  EXPECT_TRUE(filter.stopped());
}

TEST(StopFilter, TheFirstOfSeveralCounts) {
  StopFilter filter({"ing", "or", "story"});
  EXPECT_EQ(passed(filter, {"a st", "ory is ending"}), (Pieces{"a ", "", ""}));
  StopFilter shortest({"abc", "b"});
  EXPECT_EQ(passed(shortest, {"a", "b", "c"}), (Pieces{"", "a", "", ""}));
}

TEST(StopFilter, CharactersOfSeveralBytes) {
  StopFilter filter({"\u00E9\u20AC"});
  EXPECT_EQ(passed(filter, {"caf\u00E9", "\u00E9", "\u20AC!"}), (Pieces{"caf", "\u00E9", "", ""}));
  EXPECT_TRUE(filter.stopped());
}

TEST(StopFilter, RefusesWhatNoTextContains) {
  EXPECT_NO_THROW(check_stop_strings({"a", "\n"}));
  EXPECT_THROW(check_stop_strings({""}), UsageError);
  EXPECT_THROW(check_stop_strings({"a", "\xE9"}), UsageError);
}

}  // namespace
}  // namespace kvc
