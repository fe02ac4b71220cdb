// Everything that is not supported, or damaged, is refused in one sentence that names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/testing/error_of.h"

namespace kvc::tokenizer_refusal_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Refusal {
  const char* name;
  std::function<void(json&)> change;
  const char* message;
};

json small_tokenizer() {
  return json::parse(
      R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
      "post_processor": null, "decoder": null,
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

json added(const std::string& content, int id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

json split(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

class TokenizerFile : public ::testing::Test {
 protected:
  TokenizerFile() { std::filesystem::create_directories(directory_); }
  ~TokenizerFile() override { std::filesystem::remove_all(directory_); }

  Tokenizer load(const std::string& text) {
    std::ofstream(directory_ / "tokenizer.json") << text;
    return Tokenizer::load(directory_);
  }
  std::string message_of(const std::string& text) {
    return error_of([&] { load(text); });
  }

  std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) /
      (std::string("kvc_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

json template_of(const json& id) {
  return {{"type", "TemplateProcessing"},
          {"single", json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                  {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
          {"pair", json::array()},
          {"special_tokens",
           {{"<s>", {{"id", "<s>"}, {"ids", json::array({id})}, {"tokens", {"<s>"}}}}}}};
}

const Refusal kRefusals[] = {
    {"unigram", [](json& t) { t["model"]["type"] = "Unigram"; }, "\"Unigram\" is not supported"},
    {"word piece", [](json& t) { t["model"]["type"] = "WordPiece"; }, "\"WordPiece\""},
    {"dropout", [](json& t) { t["model"]["dropout"] = 0.1; }, "dropout"},
    {"merge", [](json& t) { t["model"]["merges"] = {"a c"}; }, "token \"c\""},
    {"merge result", [](json& t) { t["model"]["merges"] = {"b a"}; }, "token \"ba\""},
    {"merge text", [](json& t) { t["model"]["merges"] = {"a b c"}; }, "merge \"a b c\""},
    {"merge kind", [](json& t) { t["model"]["merges"] = {7}; }, "merge 7"},
    {"two ids", [](json& t) { t["model"]["vocab"]["b"] = 0; }, "have one id, 0"},
    {"negative id", [](json& t) { t["model"]["vocab"]["b"] = -1; }, "id -1"},
    {"no vocabulary", [](json& t) { t["model"].erase("vocab"); }, "\"vocab\" is missing"},
    {"no model", [](json& t) { t.erase("model"); }, "model: expected an object"},
    {"normalizer",
     [](json& t) {
       t["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", ""}};
     },
     "normalizer: \"Precompiled\""},
    {"nested normalizer",
     [](json& t) {
       t["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "BertNormalizer"}}}}};
     },
     "\"BertNormalizer\" is not supported"},
    {"pattern kind",
     [](json& t) {
       t["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Glob", "*"}}}, {"content", ""}};
     },
     "pattern kind \"Glob\" is not supported"},
    {"invalid regex", [](json& t) { t["pre_tokenizer"] = split("(a"); },
     "the pattern \"(a\" is not valid"},
    {"property", [](json& t) { t["pre_tokenizer"] = split("\\p{Nonsense}+"); },
     "\"\\p{Nonsense}\" in the pattern is not supported"},
    {"grapheme cluster", [](json& t) { t["pre_tokenizer"] = split("\\X"); }, "\"\\X\""},
    {"regex option", [](json& t) { t["pre_tokenizer"] = split("(?W:a)"); }, "\"(?W:\""},
    {"behavior",
     [](json& t) {
       t["pre_tokenizer"] = split("a");
       t["pre_tokenizer"]["behavior"] = "Doubled";
     },
     "behavior \"Doubled\" is not known"},
    {"pre-tokenizer",
     [](json& t) {
       t["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
     },
     "pre_tokenizer: \"BertPreTokenizer\" is not supported; supported: ByteLevel"},
    {"prepend scheme",
     [](json& t) {
       t["pre_tokenizer"] = {
           {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
     },
     "prepend_scheme \"last\""},
    {"replacement",
     [](json& t) {
       t["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
     },
     "expected one character"},
    {"incomplete",
     [](json& t) {
       t["pre_tokenizer"] = {{"type", "ByteLevel"}};
     },
     "\"add_prefix_space\" is missing"},
    {"template id", [](json& t) { t["post_processor"] = template_of(-5); },
     "\"ids\" of \"<s>\" holds -5, expected token ids"},
    {"template fraction", [](json& t) { t["post_processor"] = template_of(1.7); }, "holds 1.7"},
    {"template range", [](json& t) { t["post_processor"] = template_of(std::int64_t{1} << 32); },
     "holds 4294967296"},
    {"post-processor",
     [](json& t) {
       t["post_processor"] = {{"type", "BertProcessing"}};
     },
     "key \"cls\" is missing"},
    {"two templates",
     [](json& t) {
       const json bert = {{"type", "BertProcessing"}, {"cls", {"a", 0}}, {"sep", {"b", 1}}};
       t["post_processor"] = {{"type", "Sequence"}, {"processors", {bert, bert}}};
     },
     "more than one member"},
    {"template token",
     [](json& t) {
       t["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                              {"special_tokens", json::object()}};
     },
     "\"<s>\" is missing"},
    {"decoder",
     [](json& t) {
       t["decoder"] = {{"type", "WordPiece"}};
     },
     "decoder: \"WordPiece\""},
    {"wrong type",
     [](json& t) {
       t["decoder"] = {{"type", 5}};
     },
     "wrong type"},
    {"unknown key", [](json& t) { t["extra"] = 1; }, "key \"extra\""},
    {"version", [](json& t) { t["version"] = "2.0"; }, "version \"2.0\""},
    {"added id", [](json& t) { t["added_tokens"] = {added("<s>", 7)}; }, "gives it id 3"},
    {"added alike",
     [](json& t) {
       t["normalizer"] = {{"type", "Lowercase"}};
       t["added_tokens"] = {added("X", 3), added("x", 4)};
       for (json& token : t["added_tokens"]) token["normalized"] = true;
     },
     "both looked for as \"x\""},
    {"added white space",
     [](json& t) {
       t["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
       t["added_tokens"] = {added("\n", 3)};
       t["added_tokens"][0]["normalized"] = t["added_tokens"][0]["lstrip"] = true;
     },
     "empty once it is normalized"},
    {"added length", [](json& t) { t["added_tokens"] = {added(std::string(5000, 'x'), 3)}; },
     "5000 bytes"},
};

TEST_F(TokenizerFile, RefusalsNameTheCause) {
  for (const Refusal& refusal : kRefusals) {
    json tokenizer = small_tokenizer();
    refusal.change(tokenizer);
    const std::string message = message_of(tokenizer.dump());
    EXPECT_THAT(message, HasSubstr(refusal.message)) << refusal.name;
    EXPECT_THAT(message, HasSubstr("tokenizer.json")) << refusal.name;
  }
}

TEST_F(TokenizerFile, DamagedFiles) {
  EXPECT_THAT(message_of(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of(small_tokenizer().dump().substr(0, 100)), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("expected an object"));
  EXPECT_THROW(Tokenizer::load(directory_ / "nowhere"), Error);
}

TEST_F(TokenizerFile, TextAndIdsAreChecked) {
  json gaps = small_tokenizer();
  gaps["model"]["vocab"]["c"] = 9;
  const Tokenizer tokenizer = load(gaps.dump());
  EXPECT_EQ(tokenizer.vocab_size(), 10);
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<std::int64_t>{2, 9}));
  EXPECT_EQ(tokenizer.decode({2, 5, 9}), "ab c");  // 5 is a gap; without a decoder, spaces join
  EXPECT_THROW(tokenizer.encode("a\xC3"), Error);
  EXPECT_EQ(tokenizer.decode({2, 10, 9, 151935}), "ab c");
  EXPECT_EQ(tokenizer.decode({10}), "");
  EXPECT_THROW(tokenizer.decode({-1}), Error);
}

// As the library has it: an empty one is dropped, the last of several with one content counts.
TEST_F(TokenizerFile, AddedTokensWithOneContent) {
  json twice = small_tokenizer();
  twice["added_tokens"] = {added("", 3), added("<x>", 3), added("<x>", 3)};
  twice["added_tokens"][2]["lstrip"] = true;
  EXPECT_EQ(load(twice.dump()).encode("a <x>"), (std::vector<std::int64_t>{0, 3}));
}

// "  " takes the white space around it; what a token before it has taken gives no other token.
TEST_F(TokenizerFile, WhiteSpaceIsTakenOnce) {
  json spaces = small_tokenizer();
  spaces["added_tokens"] = {added("  ", 3)};
  spaces["added_tokens"][0]["lstrip"] = spaces["added_tokens"][0]["rstrip"] = true;
  EXPECT_EQ(load(spaces.dump()).encode("a      b"), (std::vector<std::int64_t>{0, 3, 1}));
}

TEST_F(TokenizerFile, AnUnknownTokenIsMissedOnlyWhenItIsNeeded) {
  json tokenizer = small_tokenizer();
  tokenizer["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(load(tokenizer.dump()).encode("ab"), (std::vector<std::int64_t>{2}));
  EXPECT_THROW(load(tokenizer.dump()).encode("abc"), Error);
}

// Exponential on this text without a bound.
TEST_F(TokenizerFile, APatternThatBacktracksIsStopped) {
  json tokenizer = small_tokenizer();
  tokenizer["pre_tokenizer"] = split("(a|aa)+$");
  const Tokenizer slow = load(tokenizer.dump());
  EXPECT_THROW(slow.encode(std::string(200, 'a') + "b"), Error);
}

TEST_F(TokenizerFile, HashIsOfTheFile) {
  const std::string text = small_tokenizer().dump();
  EXPECT_EQ(load(text).hash(), load(text).hash());
  EXPECT_NE(load(text).hash(), load(text + " ").hash());
}

}  // namespace
}  // namespace kvc::tokenizer_refusal_test
