// Texts and ids from the tokenizers library (tests/generators/make_tokenizer_golden.py) and, where there is a
// tokenizer.model alone, from transformers' Python tokenizers (tests/generators/make_sentencepiece_golden.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace kvc::tokenizer_golden_test {
namespace {

using Ids = std::vector<std::int64_t>;

const std::filesystem::path kData = KVC_TEST_DATA;

// A real tokenizer lies beside its model, a synthetic one beside its golden file.
std::filesystem::path tokenizer_directory(const std::string& name) {
  const auto synthetic = kData / "tokenizer" / name;
  return std::filesystem::exists(synthetic) ? synthetic : kData / name;
}

class TokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, EqualsTheLibrary) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_directory(GetParam()));
  std::ifstream file(kData / "tokenizer" / (std::string(GetParam()) + ".json"));
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 100u);
  for (const auto& expected : cases) {
    const Ids ids = expected["ids"];
    EXPECT_EQ(tokenizer.decode(ids), expected["decoded"].get<std::string>()) << expected.dump();
    if (expected.contains("text")) {
      EXPECT_EQ(tokenizer.encode(expected["text"].get<std::string>()), ids) << expected.dump();
    } else {
      EXPECT_EQ(tokenizer.decode(ids, false), expected["all"].get<std::string>())
          << expected.dump();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerGolden,
    ::testing::Values("reference-llama", "stories260K-hf", "byte_level_prefix",
                      "byte_level_no_regex", "byte_level_whole_words", "byte_level_legacy",
                      "byte_level_plain", "metaspace_added", "metaspace_fused_unknown",
                      "metaspace_single_unknown", "metaspace_dropped_unknown",
                      "metaspace_some_bytes", "metaspace_whole_words", "metaspace_bytes",
                      "metaspace_forms", "gpt2", "llama3", "qwen2", "qwen35", "o200k", "kimi",
                      "starcoder2", "deepseek_v3", "deepseek_coder", "falcon", "gpt_neox", "clip",
                      "llama2", "mistral", "metaspace_always", "metaspace_never", "gemma",
                      "accents", "control", "sentencepiece_llama", "sentencepiece_legacy",
                      "sentencepiece_added", "sentencepiece_old_files", "sentencepiece_gemma",
                      "sentencepiece_nfkc", "sentencepiece_unigram"));

TEST(Tokenizer, AddsSpecialTokensOnlyIfAsked) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "stories260K-hf");
  Ids ids = tokenizer.encode("Once upon a time", false);
  EXPECT_EQ(tokenizer.with_special_tokens(ids), tokenizer.encode("Once upon a time"));
  ids.insert(ids.begin(), 1);  // <s>
  EXPECT_EQ(ids, tokenizer.encode("Once upon a time"));
  EXPECT_EQ(tokenizer.decode(ids), "Once upon a time");
  EXPECT_EQ(tokenizer.decode(ids, false), "<s> Once upon a time");
}

}  // namespace
}  // namespace kvc::tokenizer_golden_test
