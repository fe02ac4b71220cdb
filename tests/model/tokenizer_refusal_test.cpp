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

namespace kvc {
namespace {

using nlohmann::json;
using testing::HasSubstr;

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

class TokenizerFile : public testing::Test {
 protected:
  TokenizerFile() { std::filesystem::create_directories(directory_); }
  ~TokenizerFile() override { std::filesystem::remove_all(directory_); }

  Tokenizer load(const std::string& text) {
    std::ofstream(directory_ / "tokenizer.json") << text;
    return Tokenizer::load(directory_);
  }
  std::string message_of(const std::string& text) {
    try {
      load(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path directory_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("kvc_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

const Refusal kRefusals[] = {
    {"unigram", [](json& t) { t["model"]["type"] = "Unigram"; }, "\"Unigram\" is not supported"},
    {"word piece", [](json& t) { t["model"]["type"] = "WordPiece"; }, "\"WordPiece\""},
    {"dropout", [](json& t) { t["model"]["dropout"] = 0.1; }, "dropout"},
    {"prefix", [](json& t) { t["model"]["continuing_subword_prefix"] = "##"; }, "\"##\""},
    {"suffix", [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }, "\"</w>\""},
    {"unk", [](json& t) { t["model"]["unk_token"] = "<unk>"; }, "unk_token \"<unk>\""},
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
       t["normalizer"] = {{"type", "NFC"}};
     },
     "normalizer: \"NFC\""},
    {"nested normalizer",
     [](json& t) {
       t["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}};
     },
     "\"Lowercase\" is not supported"},
    {"regex",
     [](json& t) {
       t["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", ""}};
     },
     "pattern kind \"Regex\" is not supported"},
    {"pre-tokenizer",
     [](json& t) {
       t["pre_tokenizer"] = {{"type", "Split"}};
     },
     "pre_tokenizer: \"Split\" is not supported; supported: ByteLevel"},
    {"incomplete",
     [](json& t) {
       t["pre_tokenizer"] = {{"type", "ByteLevel"}};
     },
     "\"add_prefix_space\" is missing"},
    {"post-processor",
     [](json& t) {
       t["post_processor"] = {{"type", "BertProcessing"}};
     },
     "post_processor: \"BertProcessing\""},
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
    {"added twice",
     [](json& t) {
       t["added_tokens"] = {added("a", 0), added("a", 0)};
     },
     "twice"},
    {"added empty", [](json& t) { t["added_tokens"] = {added("", 3)}; }, "is empty"},
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
  EXPECT_THROW(tokenizer.decode({10}), Error);
  EXPECT_THROW(tokenizer.decode({-1}), Error);
}

TEST_F(TokenizerFile, HashIsOfTheFile) {
  const std::string text = small_tokenizer().dump();
  EXPECT_EQ(load(text).hash(), load(text).hash());
  EXPECT_NE(load(text).hash(), load(text + " ").hash());
}

}  // namespace
}  // namespace kvc
