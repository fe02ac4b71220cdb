// Thousands of wrong tokenizer.json files: each is refused with a message that names the file, or
// gives a tokenizer that works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "core/error.h"
#include "model/tokenizer/tokenizer.h"

namespace kvc::tokenizer_mutation_test {
namespace {

using nlohmann::json;

const std::filesystem::path kData = KVC_TEST_DATA;

// Values that break readers more often than others do.
const json kWrongValues[] = {nullptr,
                             true,
                             -1,
                             0,
                             1.5,
                             1e300,
                             4294967296,
                             18446744073709551615u,
                             "",
                             "A",
                             "\u2581",
                             std::string(1, '\0'),
                             "Sequence",
                             "Split",
                             "(",
                             "(a|aa)+$",
                             "\\p{L}*",
                             "^|$",
                             json::array(),
                             json::object(),
                             {{"Regex", "\\p{Lu}(?i:x)|"}},
                             {{"String", ""}},
                             {{"type", "Sequence"}, {"pretokenizers", json::array()}},
                             {{"type", "NFKC"}}};

class Mutator {
 public:
  json mutant(const json& good) {
    json root = good;
    for (std::size_t count = 1 + below(3); count > 0; --count) mutate(root);
    return root;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }

  json& member(json& container) {
    auto found = container.begin();
    std::advance(found, below(container.size()));
    return *found;
  }

  // Leaves one member at least.
  void erase_member(json& container) {
    if (container.size() == 1) return;
    const std::size_t index = below(container.size());
    if (container.is_array()) {
      container.erase(index);
    } else {
      container.erase(std::next(container.begin(), static_cast<std::ptrdiff_t>(index)));
    }
  }

  void mutate(json& value) {
    json* container = &value;
    while (below(4) != 0) {
      json& next = member(*container);
      if (!next.is_structured() || next.empty()) break;
      container = &next;
    }
    json& target = member(*container);
    switch (below(5)) {
      case 0:
        target = kWrongValues[below(std::size(kWrongValues))];
        break;
      case 1:
        target = member(*container);
        break;
      case 2:
        if (container->is_array()) container->push_back(target);
        break;
      case 3:
        erase_member(*container);
        break;
      default:
        target = json{{"type", target}};
    }
  }

  std::mt19937_64 random_{20};  // NOLINT: the same mutants in every run
};

class TokenizerMutation : public ::testing::TestWithParam<const char*> {
 protected:
  TokenizerMutation() { std::filesystem::create_directories(directory_); }
  ~TokenizerMutation() override { std::filesystem::remove_all(directory_); }

  // Whether it was accepted.
  bool survives(const std::string& text) {
    std::ofstream(directory_ / "tokenizer.json") << text;
    try {
      const Tokenizer tokenizer = Tokenizer::load(directory_);
      const auto ids =
          tokenizer.encode("Once upon  a time,\n\u00E9\U0001F4A9 <keep> 12 I'LL \u2581b");
      tokenizer.decode(ids);
      tokenizer.decode({0, 1, 2}, false);
      return true;
    } catch (const Error& error) {
      EXPECT_STRNE(error.what(), "");
      return false;
    }
  }

  // Vocabulary and merges cut short, so that mistakes meet the other parts.
  static json good() {
    std::ifstream file(kData / "tokenizer" / GetParam() / "tokenizer.json");
    json root = json::parse(file);
    json& model = root["model"];
    json vocab = json::object();
    for (const auto& [token, id] : model["vocab"].items()) {
      if (id < 40) vocab[token] = id;
    }
    model["vocab"] = vocab;
    model["merges"] = json::array();
    int next = static_cast<int>(vocab.size());
    for (json& token : root["added_tokens"]) {
      if (token["id"] >= 40) token["id"] = next++;
    }
    return root;
  }

  std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / (std::string("kvc_mutation_") + GetParam());
};

TEST_P(TokenizerMutation, IsRefusedOrWorks) {
  const json seed = good();
  ASSERT_TRUE(survives(seed.dump()));
  Mutator mutator;
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    accepted += survives(mutator.mutant(seed).dump(-1, ' ', true, json::error_handler_t::replace));
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 1500);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerMutation,
                         ::testing::Values("llama3", "deepseek_v3", "mistral", "llama2", "clip",
                                           "accents", "control"));

class TokenizerNesting : public ::testing::Test {};

TEST_F(TokenizerNesting, DepthIsBounded) {
  const auto directory = std::filesystem::path(::testing::TempDir()) / "kvc_nesting";
  std::filesystem::create_directories(directory);
  std::string text = R"({"normalizer":)";
  for (int i = 0; i < 100'000; ++i) text += R"({"type":"Sequence","normalizers":[)";
  std::ofstream(directory / "tokenizer.json") << text;
  EXPECT_THROW(Tokenizer::load(directory), Error);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvc::tokenizer_mutation_test
